"""Figures of a benchmark, worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from edgespec.bench.figures import Figures, Latency, Stage, TextMatches, course, figures
from edgespec.bench.records import OURS, PLAIN, AnswerRecord, Burst, ContenderEntry, Depth, Pass, Run
from edgespec.bench.scopes import ALL, FREE, REPLAYED, Scope, categories, totals
from edgespec.bench.speedups import Estimate, best_configurations, families, speedup

from .benchruns import answer, fabricated, run

#: Plain: 300 tokens in 20 seconds; ours: 200 in 10. The questions' ratios are 2 and 1.
TWO = [
    answer("a", PLAIN, 100, 12.0, prompt_seconds=2.0),
    answer("b", PLAIN, 200, 12.0, prompt_seconds=2.0),
    answer("a", OURS, 100, 7.0, prompt_seconds=2.0),
    answer("b", OURS, 100, 7.0, prompt_seconds=2.0),
]


def value(estimate: Estimate | None) -> float:
    assert estimate is not None
    return estimate.value


def asked(*ratios: float) -> Run:
    """Questions on which ours is so many times as fast as plain."""
    answers = [answer(str(i), PLAIN, 100, 10.0) for i in range(len(ratios))]
    return run([*answers, *(answer(str(i), OURS, 100, 10.0 / each) for i, each in enumerate(ratios))])


def test_speedup_is_the_ratio_of_what_a_token_took() -> None:
    found = speedup(run(TWO), OURS)
    assert value(found.decoding) == pytest.approx((20 / 300) / (10 / 200))
    assert value(found.whole) == pytest.approx(12 / 7), "of question a, on which both said as many tokens"
    assert found.questions == 2


def test_the_interval_is_that_of_the_logarithm_over_questions() -> None:
    """As far above as below; and the same each time."""
    estimate = speedup(asked(*[1.0, 2.0] * 8), OURS).decoding
    assert estimate is not None
    assert estimate.interval is not None
    low, high = estimate.interval
    assert low * high == pytest.approx(estimate.value**2)
    assert 1.0 < low < estimate.value == pytest.approx(4 / 3)
    assert estimate == speedup(asked(*[1.0, 2.0] * 8), OURS).decoding


def test_the_interval_narrows_as_the_root_of_the_questions() -> None:
    """Ratios of 1 and 3 in turns, of 16 times the questions: a quarter of the width, in logarithms."""

    def width(questions: int) -> float:
        estimate = speedup(asked(*(1.0 + 2 * (i % 2) for i in range(questions))), OURS).decoding
        assert estimate is not None
        assert estimate.interval is not None
        return float(np.log(estimate.interval[1] / estimate.interval[0]))

    assert width(20) / width(320) == pytest.approx(4, rel=0.15)


def test_few_questions_have_no_interval() -> None:
    few, enough = (speedup(asked(*[1.0, 1.5] * 3, *more), OURS).decoding for more in ([1.2], [1.2, 1.3]))
    assert few is not None
    assert few.interval is None
    assert enough is not None
    assert enough.interval is not None


def test_a_question_alone_has_no_interval() -> None:
    turns = [answer("a", name, 10, 10.0 / (1 + turn), turn=turn) for turn in range(4) for name in (PLAIN, OURS)]
    found = speedup(run(turns), OURS)
    assert found.decoding == Estimate(1.0)
    assert found.questions == 1


def test_one_question_unlike_all_others_makes_no_endless_interval() -> None:
    """Where seven are alike to a thousandth, most samples drawn again know nothing of the eighth."""
    estimate = speedup(asked(3.0, *(1 + i / 1000 for i in range(7))), OURS).decoding
    assert estimate is not None
    assert estimate.interval is not None
    low, high = estimate.interval
    assert 0.4 < low < 1.1
    assert 1.1 < high < 3.0


def test_questions_that_are_all_alike_have_an_interval_of_no_width() -> None:
    estimate = speedup(asked(*[1.5] * 9), OURS).decoding
    assert estimate is not None
    assert estimate.interval == pytest.approx((1.5, 1.5))


@pytest.mark.parametrize("few", [PLAIN, OURS])
def test_a_ratio_of_fewer_than_30_tokens_is_none(few: str) -> None:
    answers = [answer("a", name, 29 if name == few else 1000, 10.0) for name in (PLAIN, OURS)]
    found = speedup(run(answers), OURS)
    assert (found.decoding, found.whole, found.median, found.questions) == (None, None, None, 1)
    assert figures(run(answers), few).tokens_per_second is None


def test_the_median_is_of_three_questions_with_tokens_enough() -> None:
    short = [answer("short", PLAIN, 29, 29.0), answer("short", OURS, 29, 0.1)]
    assert speedup(run([*asked(1.0, 2.0).answers, *short]), OURS).median is None
    assert speedup(run([*asked(1.0, 2.0, 4.0).answers, *short]), OURS).median == pytest.approx(2.0)


def test_an_answer_whose_prompt_is_not_known_is_compared_as_a_whole_only() -> None:
    """Of a peer that says all at once it is not known what decoding took: next to nothing, it seemed."""
    answers = [answer(q, PLAIN, 40, 10.0, prompt_seconds=2.0) for q in "ab"]
    answers += [answer("a", "peer", 40, 8.0, prompt_seconds=None), answer("b", "peer", 40, 6.0, prompt_seconds=2.0)]
    found = speedup(run(answers), "peer")
    assert value(found.decoding) == pytest.approx(2.0)
    assert value(found.whole) == pytest.approx(20 / 14)
    assert found.questions == 1
    assert figures(run(answers), "peer").tokens_per_second == pytest.approx(10.0)


def test_only_what_both_answered_is_compared() -> None:
    more = [answer("c", PLAIN, 99, 99.0), answer("d", OURS, 99, 99.0)]
    turns = [answer("a", PLAIN, 99, 99.0, turn=1), answer("b", OURS, 99, 99.0, turn=1)]
    assert speedup(run([*TWO, *more, *turns]), OURS) == speedup(run(TWO), OURS)


def test_questions_of_other_categories_or_kinds_are_others() -> None:
    more = [
        answer("a", PLAIN, 1, 99.0, category="other"),
        answer("b", PLAIN, 1, 99.0, replayed=True),
        answer("e", OURS, 1, 99.0),
        answer("e", PLAIN, 1, 99.0, replayed=True),
    ]
    assert speedup(run([*TWO, *more]), OURS) == speedup(run(TWO), OURS)


@pytest.mark.parametrize(
    ("tokens", "seconds"), [(0, 5.0), (10, 0.0), (10, -1.0)], ids=["no tokens", "no time", "a prompt told too long"]
)
def test_nothing_is_divided_by_nothing(tokens: int, seconds: float) -> None:
    answers = [answer("a", PLAIN, 10, 10.0), answer("a", OURS, tokens, seconds)]
    found = speedup(run(answers), OURS)
    assert (found.decoding, found.median, found.questions) == (None, None, 1)
    assert figures(run(answers), OURS).tokens_per_second is None


def test_an_empty_answer_spoils_no_interval() -> None:
    answers = [*TWO, answer("c", PLAIN, 0, 0.0), answer("c", OURS, 0, 0.0)]
    found = speedup(run(answers), OURS)
    assert value(found.decoding) == pytest.approx(4 / 3)
    estimate = speedup(run([*asked(*[1.0, 1.5] * 5).answers, *answers[4:]]), OURS).decoding
    assert value(estimate) == value(speedup(asked(*[1.0, 1.5] * 5), OURS).decoding)


def test_a_run_without_answers_has_no_figures() -> None:
    found = figures(run(), OURS)
    assert (found.answers, found.tokens, found.lengths, found.depths) == (0, 0, {}, {})
    assert found.same == TextMatches(0, 0, 0)
    none = ("tokens_per_second", "mean_accepted_length", "first", "gaps", "waits", "joules")
    assert [getattr(found, name) for name in none] == [None] * len(none)
    assert (found.speedup.decoding, found.speedup.questions) == (None, 0)
    assert (course(run()), categories(run()), totals(run()), best_configurations(run())) == ([], [], [], [])


def spoken() -> Figures:
    one = answer(
        "a",
        OURS,
        6,
        4.0,
        prompt_seconds=1.0,
        bursts=(Burst(1.0, 3), Burst(2.0, 1), Burst(4.0, 2)),
        passes=(Pass(4, 2, 3, 1.0), Pass(0, 0, 1, 1.0), Pass(4, 1, 2, 2.0)),
        depths={"model": (Depth(2, 2), Depth(2, 1))},
        joules=12.0,
    )
    two = answer(
        "b",
        OURS,
        2,
        2.0,
        bursts=(Burst(1.5, 1), Burst(2.0, 1)),
        passes=(Pass(1, 0, 1, 1.5), Pass(0, 0, 1, 0.5)),
        depths={"model": (Depth(1, 0),), "lookup": (Depth(3, 3),)},
    )
    return figures(run([one, two]), OURS)


def test_rates() -> None:
    found = spoken()
    assert (found.answers, found.tokens) == (2, 8)
    assert found.mean_accepted_length == pytest.approx(8 / 5)
    assert found.first == pytest.approx((1.0 + 1.5) / 2)
    assert found.joules == pytest.approx(12 / 6)  # of the answer whose energy is known
    assert found.lengths == {0: 2, 1: 1, 4: 2}
    assert found.depths == {"model": (Depth(3, 2), Depth(2, 1)), "lookup": (Depth(3, 3),)}


def test_tokens_of_a_burst_come_at_once() -> None:
    """Between tokens: 0, 0, 1, 2, 0 and 0.5 seconds; between bursts 1, 2 and 0.5."""
    found = spoken()
    assert found.gaps == Latency(0.25, None, None)
    assert found.waits == Latency(1.0, None, None)


@pytest.mark.parametrize(("cases", "told"), [(2, 0), (3, 1), (19, 1), (20, 2), (99, 2), (100, 3)])
def test_a_percentile_needs_cases_beyond_it(cases: int, told: int) -> None:
    bursts = tuple(Burst(i * (i + 1) / 2, 1) for i in range(cases + 1))
    found = figures(run([answer("a", OURS, cases + 1, 9e9, bursts=bursts)]), OURS).gaps
    wanted = np.percentile(np.arange(1, cases + 1), (50, 95, 99)).tolist()[:told]
    assert ([each for each in found if each is not None] if found else []) == pytest.approx(wanted)


def test_sameness_counts_free_answers_whose_tokens_are_told() -> None:
    plain = [answer(name, PLAIN, 5, 1.0, digest="x") for name in "abcd"]
    peers = [
        answer("a", "peer", 5, 1.0, digest="x"),
        answer("b", "peer", 5, 1.0, digest="y"),
        answer("c", "peer", 5, 1.0),
        answer("e", "peer", 5, 1.0, digest="x"),
    ]
    forced = [answer("f", name, 5, 1.0, digest="x", replayed=True) for name in (PLAIN, "peer")]
    assert figures(run([*plain, *peers, *forced]), "peer").same == TextMatches(1, 2, 1)
    free = [answer("f", name, 5, 1.0, digest="x") for name in (PLAIN, "peer")]
    assert figures(run([forced[0], free[1]]), "peer").same == TextMatches(0, 0, 0)
    assert figures(run([free[0], forced[1]]), "peer").same == TextMatches(0, 0, 0)


def test_replayed_answers_stand_apart() -> None:
    free, replayed, both = (speedup(fabricated(), OURS, scope) for scope in (FREE, REPLAYED, ALL))
    assert (free.questions, replayed.questions, both.questions) == (16, 14, 30)
    assert len({value(each.decoding) for each in (free, replayed, both)}) == 3
    assert [scope.label for scope in categories(fabricated())] == [
        "chat",
        "summarization",
        "copy (replayed)",
        "hard (replayed)",
    ]
    assert totals(fabricated()) == [FREE, REPLAYED, ALL]
    assert totals(fabricated(), "llama-server") == [FREE]


def test_the_answer_to_look_at_is_a_free_one_of_median_length_that_shows_drafts() -> None:
    drafts = {"passes": (Pass(1, 1, 2, 1.0),)}
    replayed = [answer(str(n), OURS, n, 1.0, replayed=True, **drafts) for n in (1, 2, 3)]
    free = [answer(str(n), OURS, n, 1.0, **drafts) for n in (30, 10, 20)]
    dull = [answer(str(n), OURS, n, 1.0, passes=(Pass(0, 0, 1, 1.0),)) for n in (40, 50)]
    assert run([*replayed, *free, *dull]).typical == free[2]
    assert run([*replayed, *dull]).typical == replayed[1]
    assert run(dull).typical is None


def test_a_category_with_both_kinds_is_two() -> None:
    answers = [answer("a", PLAIN, 1, 1.0), answer("b", PLAIN, 1, 1.0, replayed=True)]
    assert categories(run(answers)) == [Scope("chat", False), Scope("chat", True)]


def peers(*more: AnswerRecord) -> list[AnswerRecord]:
    """Two questions: ours twice as fast as plain; a peer 1.25 and 1.6 times, by its configuration."""
    seconds = {PLAIN: 10.0, OURS: 5.0, "peer": 8.0, "peer:fast": 6.25}
    return [*(answer(q, name, 20, each) for q in "ab" for name, each in seconds.items()), *more]


def test_a_peer_is_compared_at_its_best() -> None:
    (best,) = best_configurations(run(peers()))
    assert (best.family, best.configuration, best.of) == ("peer", "peer:fast", 2)
    assert best.speedup.value == pytest.approx(1.6)
    assert value(best.ours.decoding) == pytest.approx(6.25 / 5)


def test_a_configuration_that_broke_down_early_is_not_the_best() -> None:
    (best,) = best_configurations(run(peers(answer("a", "peer:lucky", 100, 1.0))))
    assert best.configuration == "peer:fast"


def test_families_are_peers_and_fixed_lengths_of_ours() -> None:
    names = {"plain": False, "edgespec": False, "lookup": False, "k=2": False, "k=4": False, "peer:x": True}
    takes = [
        *(ContenderEntry(name, name, peer=peer) for name, peer in names.items()),
        ContenderEntry("gone", "", True, "missing"),
    ]
    assert families(run([], contenders=takes)) == {"fixed K": ["k=2", "k=4"], "peer": ["peer:x"]}


def test_the_course_of_draft_lengths_is_averaged_in_order() -> None:
    passes = tuple(Pass(k, k // 2, 1 + k // 2, 1.0) for k in (0, 2, 4, 6, 8))
    answers = [answer("a", OURS, 5, 1.0, passes=passes[:3]), answer("b", OURS, 5, 1.0, passes=passes[3:])]
    assert course(run(answers), stages=2) == [Stage(3, 2.0, 1.0), Stage(2, 7.0, 3.5)]
    assert [stage.drafted for stage in course(run(answers))] == [0, 2, 4, 6, 8]
