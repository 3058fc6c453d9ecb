"""The comparison of controllers: what it replays is fair, and ours holds its own on a slice of it."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

pytest.importorskip("benchmarks", reason="the benchmarks are not beside the tests, and no part of an install")

from benchmarks.simulator import recycled
from benchmarks.simulator.__main__ import TRACES, fixed, others, ours
from benchmarks.simulator.ablation import HEURISTICS, SETTINGS, Setting, replay
from benchmarks.simulator.blocks import Block, speedup
from benchmarks.simulator.clairvoyant import clairvoyant
from benchmarks.simulator.engines import Wrong, markdown, picture, prices, replayed, summary
from benchmarks.simulator.measured import CONTEXTS, WIDTHS, Measured, flat, kept_with, load, passes
from benchmarks.simulator.recycled import Rows
from benchmarks.simulator.several import pieces, seconds
from benchmarks.simulator.trace import Trace
from benchmarks.simulator.world import CURVES, Clock, Curve, Outcome, Recorded, World, accepted
from edgespec.backends.toy import ToySession, ngram_rule
from edgespec.controller.adaptive import Adaptive
from edgespec.controller.fixed import Fixed
from edgespec.drafters import Drafter
from edgespec.drafters.lookup import Lookup
from edgespec.prices import restless
from edgespec.sampling import Sampling
from edgespec.types import Draft
from edgespec.verify import RoundContext, verifier

SOME = (CURVES[0], CURVES[1], CURVES[4])


@cache
def beginning(name: str, tokens: int = 600) -> Trace:
    """The first answers of a trace, so many tokens at least."""
    items = []
    for item in Trace.load(name).items:
        items.append(item)
        if sum(len(taken.answer) for taken in items) >= tokens:
            break
    return Trace(name, items)


@cache
def known(name: str) -> dict[str, Outcome]:
    return fixed(beginning(name))


@pytest.mark.parametrize("curve", SOME, ids=lambda curve: curve.name)
@pytest.mark.parametrize("name", TRACES)
def test_ours_comes_near_every_fixed_choice_and_nobody_beats_the_clairvoyant(name: str, curve: Curve) -> None:
    trace = beginning(name)
    best = max(1.0, *(outcome.speedup(curve) for outcome in known(name).values()))
    reached = ours(trace, curve)
    assert reached >= 0.95 * best
    assert ours(trace, curve, trees=True) >= 0.93 * best
    limit = clairvoyant(trace, curve)
    assert max(best, reached, *(outcome.speedup(curve) for outcome in others(trace, curve).values())) <= limit
    assert reached > 2 / 3 * limit, "a limit that nobody comes near says nothing"


def test_recycling_is_replayed_with_the_rows_of_the_target() -> None:
    trace, curve = beginning("chat", 120), flat()[0]
    with closing(Rows()) as rows:
        outcomes = [
            recycled.replayed(trace, curve, rows, model=False, recycling=recycling) for recycling in (False, True, True)
        ]
    found = [outcome.tokens / outcome.seconds for outcome in outcomes]
    assert found[1] == found[2]
    assert found[0] != found[1] > 0.9


def test_replaying_twice_gives_the_same_figures() -> None:
    """No clock of the machine, no hash order, nothing left of the run before."""

    def replay() -> list[Outcome]:
        outcomes = []
        for trees in (False, True):
            world = World(beginning("mix", 200), SOME[2])
            drafters: list[Drafter] = [Lookup(), world.model]
            outcomes.append(world.run(Adaptive(drafters, world.prices, trees=trees, clock=world.clock)))
        return outcomes

    chains, trees = replay()
    assert replay() == [chains, trees]
    assert not any(tree for _, tree in chains.passes)
    assert any(tree for _, tree in trees.passes)
    assert chains.steps > 0


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.name)
def test_on_a_noisy_machine_a_replay_is_the_same_every_time(setting: Setting) -> None:
    trace = beginning("copy", 300)
    first = replay(trace, SOME[0], setting)
    assert first > 1.2
    assert replay(trace, SOME[0], setting) == first


@pytest.mark.parametrize("name", HEURISTICS)
def test_a_heuristic_is_off_and_then_on_again(name: str) -> None:
    """A name that the controller no longer has would fail here, and not after an hour of replaying."""
    trace, setting = beginning("mix", 200), SETTINGS[0]
    before = replay(trace, SOME[0], setting)
    with HEURISTICS[name]():
        assert replay(trace, SOME[0], setting) > 0.3
    assert replay(trace, SOME[0], setting) == before


def test_plain_decoding_takes_a_plain_step_a_token() -> None:
    trace = beginning("copy", 200)
    outcome = World(trace, SOME[0]).run(Fixed([], 0))
    assert outcome == Outcome(trace.tokens, passes=outcome.passes)
    assert dict(outcome.passes) == {(1, False): trace.tokens}
    assert outcome.speedup(SOME[0]) == 1


def test_a_run_costs_what_its_passes_and_guesses_cost() -> None:
    trace, curve = beginning("chat", 200), SOME[0]
    world = World(trace, curve)
    outcome = world.run(Fixed([world.model], 3))
    assert outcome.tokens == trace.tokens == outcome.accepted + outcome.rounds
    assert outcome.steps > 0
    assert world.clock.now == pytest.approx(trace.tokens / outcome.speedup(curve))
    assert 1 < outcome.speedup(curve) < 4 / curve.seconds[3]


def test_the_recorded_model_reads_each_token_once_and_its_own_guesses_not_again() -> None:
    clock = Clock()
    model = Recorded(clock, step_price=1.0, reading=0.5)
    rule, sampling, context = verifier("match"), Sampling(), [1, 2, 3, 4]

    def took(*paths: tuple[int, ...]) -> float:
        started = clock.now
        model.begin(RoundContext(rule, sampling, context, lambda _token: False))
        for path in paths:
            model.guess(path, 1)
        return clock.now - started  # without an answer under way it only reads

    assert took((), (5,), (5, 6)) == 3 * 0.5, "the last token of the prompt is read by its guess"
    context += [5, 6, 9]
    assert model.held(context) == 6
    assert took(()) == 0, "5 and 6 were its own guesses"
    context += [10, 11]
    assert took(()) == 0.5
    context[-1] = 12
    assert model.held(context) == 8
    assert took((), (13,)) == 0


def test_what_is_accepted_of_a_tree_is_the_path_that_the_text_follows() -> None:
    """The last token of the text always comes from the target: a draft of it is too long."""
    tree = Draft((7, 5, 6, 8, 6, 9), (-1, -1, 1, 2, 0, 3), ("test",) * 6)
    assert accepted(tree, [5, 6, 8, 9, 1]) == (1, 2, 3, 5)
    assert accepted(tree, [5, 6, 8, 9]) == (1, 2, 3)
    assert accepted(tree, [7, 6, 8, 1]) == (0, 4)
    assert accepted(tree, [5, 9, 9, 9]) == (1,)
    assert accepted(tree, [6, 5, 8]) == ()
    assert accepted(tree, [5]) == ()
    assert accepted(Draft(), [5, 6]) == ()
    chain = Draft.chain((5, 6, 7), "test")
    assert accepted(chain, [5, 6, 9, 9]) == (0, 1)
    assert accepted(chain, [5, 6, 7, 9]) == (0, 1, 2)


def test_a_pass_of_another_width_costs_what_it_costs_at_that_place_in_a_row() -> None:
    curve = Curve("a card", (1, 2, 4), (1, 1.5, 2), starts=((3, 4, 5), (7, 8, 9)))
    trace = beginning("hard", 60)
    plain = World(trace, curve).run(Fixed([], 0))
    answers = sum(len(item.answer) for item in trace.items)
    starts = sum({1: 2, 2: 2 + 6}.get(len(item.answer), 2 + 6) for item in trace.items)
    assert plain.seconds == answers + starts, "the first of an answer takes 3, the second 7, others 1"
    assert [curve.in_a_row[place][1] for place in range(3)] == [4, 8, 1.5]


# The curves of the engines


def test_the_measured_curves_are_whole_and_plausible() -> None:
    lines = load()
    assert len({(each.model, each.engine, each.weights) for each in lines}) == len(lines)
    for each in lines:
        assert each.version
        assert each.date
        for context in filter(each.has, CONTEXTS):
            curve = each.curve(context)
            assert curve.prices[0] == 1
            assert not restless(curve.seconds)
    assert [curve.seconds[7] < 1.6 for curve in flat()] == [True, True], "int8 and int4 in OpenVINO"


def line(**changed: object) -> Measured:
    run = {"256": {str(n): 10.0 + n for n in WIDTHS}}
    made = Measured("1B", "openvino", "int8", "openvino 1", "a machine", 2, "2026-11-23", [run])
    return replace(made, **changed)  # type: ignore[arg-type]


def test_a_second_run_is_kept_beside_the_first() -> None:
    slower = {"256": {str(n): 2 * (10.0 + n) for n in WIDTHS}}
    lines = kept_with([line()], line(weights="int4"))
    lines = kept_with(lines, line(runs=[slower], date="2026-11-24"))
    assert [(each.weights, len(each.runs), each.date) for each in lines] == [
        ("int8", 2, "2026-11-24"),
        ("int4", 1, "2026-11-23"),
    ]
    assert lines[0].milliseconds(256, 4) == 14
    assert [each.differs(256) for each in lines] == ["100.0%", ""]
    assert not lines[0].has(4096)
    narrow = {"256": {"1": 10.0, "8": 30.0}}
    assert line(runs=[narrow]).cells(256)[:7] == ["10.0", "", "", "", "", "3.00", ""]
    assert line(runs=[narrow]).curve(256).widths == (1, 8)
    assert len(kept_with(lines, line(version="openvino 2"))) == 3, "another version is another line"


def test_passes_are_timed_at_each_context_and_rolled_back() -> None:
    session = ToySession(ngram_rule(8), 8, 256)
    found = passes(session, (1, 2, 4), {16: 2, 64: 1})
    assert {context: set(times) for context, times in found.items()} == {"16": {"1", "2", "4"}, "64": {"1", "2", "4"}}
    assert all(each >= 0 for times in found.values() for each in times.values())
    assert len(session.tokens) == 64


def test_a_drafter_that_is_always_wrong_is_never_right_and_costs_what_its_model_costs() -> None:
    trace, curve = beginning("chat", 200), flat()[0]
    world = World(trace, curve)
    outcome = world.run(Fixed([Wrong(world.model)], 3))
    assert outcome.accepted == 0
    assert outcome.steps == 3 * (trace.tokens - len(trace.items)) - sum(
        max(0, 3 - room) for item in trace.items for room in range(1, len(item.answer))
    )


@pytest.mark.parametrize("name", ["chat", "hard"])
def test_a_cheap_drafter_that_is_always_wrong_is_seldom_asked_where_wide_passes_are_cheap(name: str) -> None:
    trace = beginning(name, 1500)
    for curve in flat():
        world = World(trace, replace(curve, step=0.004))
        outcome = world.run(Adaptive([Wrong(world.model)], world.prices, clock=world.clock))
        assert outcome.steps < 0.3 * trace.tokens
        assert outcome.speedup(curve) > 0.99


@pytest.mark.parametrize("place", [0, 1])
def test_on_flat_curves_ours_comes_near_what_a_calibration_with_hindsight_gives(place: int) -> None:
    curve = flat()[place]
    rows = [replayed(beginning(name), curve) for name in TRACES]
    assert sum(row.ours for row in rows) <= 1.03 * sum(row.calibrated for row in rows)
    assert all(row.wrong <= 1.03 * row.tokens for row in rows)
    row = summary(curve, rows, [known(name) for name in TRACES])
    assert row[0] == curve.name
    assert row[1] == f"{curve.seconds[7]:.2f}"


def test_the_page_has_a_row_and_a_line_for_each_model() -> None:
    lines = [line(), line(weights="int4")]
    table = prices(lines, 256).splitlines()
    assert len(table) == 4
    assert "| 1B | OpenVINO int8 | 11.0 | 1.09 |" in table[2]
    assert prices(lines, 4096).count("\n") == 1, "what was not measured is left out"
    assert "OpenVINO int4" in picture(lines)
    assert markdown(["a"], [["b"]]) == "| a |\n| --- |\n| b |"


def test_the_page_of_the_docs_is_of_the_kept_curves() -> None:
    page = (Path(__file__).parents[1] / "docs" / "engines.md").read_text("utf-8")
    for context in CONTEXTS:
        assert prices(load(), context) in page


@pytest.mark.parametrize(("kept", "better"), [(1.0, True), (0.3, False)])
def test_a_block_pays_on_a_flat_curve_where_its_guesses_are_good(kept: float, better: bool) -> None:
    trace, curve = beginning("chat"), replace(CURVES[4], step=0.15)
    steps = speedup(trace, curve)
    assert (speedup(trace, curve, lambda world: Block(world, kept, 8)) > 1.02 * steps) == better
    assert speedup(trace, curve, lambda world: Block(world, 0.0, 8)) >= 0.97


def test_of_two_drafters_that_guess_the_same_the_cheaper_one_counts_whichever_is_given_first() -> None:
    trace, curve = beginning("chat", 1500), replace(CURVES[2], step=0.06)
    model, first, second = (
        seconds(trace, curve, names) for names in (("model",), ("model", "twin"), ("twin", "model"))
    )
    assert first == pytest.approx(second, rel=0.01)
    assert first < 0.9 * model


def test_pieces_are_whole_answers_of_250_tokens_or_a_little_more() -> None:
    trace = Trace.load("chat")
    found = list(pieces(trace))
    assert all(250 <= piece.tokens < 250 + len(piece.items[-1].answer) for piece in found)
    joined = [item for piece in found for item in piece.items]
    assert all(mine is theirs for mine, theirs in zip(joined, trace.items, strict=False))
    assert 0 <= trace.tokens - sum(piece.tokens for piece in found) < 250
