"""Groups of prompts that begin alike, and what is learned in them."""

from __future__ import annotations

import json
import math
from statistics import geometric_mean

import pytest

from benchmarks.simulator import later
from benchmarks.simulator.groups import VARIANTS, parts, speedup
from benchmarks.simulator.trace import Trace
from benchmarks.simulator.world import CURVES, World
from edgespec.controller.adaptive import Adaptive
from edgespec.controller.calibration import Calibration
from edgespec.controller.fingerprint import Fingerprint
from edgespec.controller.prompt_groups import GroupMean, PromptGroups
from edgespec.controller.time_value import TimeValue

_TEMPLATE = (1, 2, 3)
_COPY, _CHAT = (*_TEMPLATE, 10, 11), (*_TEMPLATE, 20, 21)


def test_prompts_that_begin_alike_are_a_group() -> None:
    groups = PromptGroups()
    copy, chat = groups.join((*_COPY, 50)), groups.join((*_CHAT, 60))
    assert copy != chat
    assert groups.join((*_COPY, 70, 71)) == copy
    assert groups.join((*_CHAT, 80)) == chat
    assert groups.join((*_TEMPLATE, 30, 31)) not in {copy, chat}


def test_what_all_prompts_have_in_common_makes_no_group() -> None:
    """The template: two prompts alone show no more than that."""
    groups = PromptGroups()
    assert len({groups.join((*_TEMPLATE, n)) for n in range(10, 20)}) == 10


def test_the_next_turn_of_a_conversation_belongs_to_its_group() -> None:
    """Also where there is no other prompt to compare with."""
    groups = PromptGroups()
    first = groups.join((*_CHAT, 60))
    assert groups.join((*_CHAT, 60, 61, 62)) == first
    assert groups.join((*_CHAT, 60, 61, 62, 63)) == first


def test_prompts_are_forgotten_and_their_groups_with_them() -> None:
    groups = PromptGroups()
    copy = groups.join(_COPY)
    for n in range(100, 100 + 50):
        groups.join((*_TEMPLATE, n))
    assert copy not in groups.remembered
    assert len(groups.remembered) == 48
    assert groups.join((*_COPY, 5)) != copy


def test_of_prompts_as_much_alike_the_latest_counts() -> None:
    groups = PromptGroups()
    first, second = groups.join((*_COPY, 50)), groups.join((*_COPY, 60))
    assert first != second, "they have no more in common than all prompts so far"
    groups.join((*_TEMPLATE, 30))
    assert groups.join((*_COPY, 70)) == second


def test_an_empty_prompt_is_one() -> None:
    groups = PromptGroups()
    assert groups.join(()) == groups.join(())


def test_a_mean_of_a_group_begins_with_that_of_all_answers() -> None:
    mean = GroupMean(decay=0.5, weight=4.0)
    mean.enter(0, {0})
    for observed in (1.0, 0.0, 1.0):
        mean.add(observed)
    mean.enter(1, {0, 1})
    assert mean.given(0.3) == pytest.approx(0.3)
    mean.enter(0, {0, 1})
    assert mean.given(0.3) == pytest.approx(0.3), "nothing was observed in the other group"
    mean.enter(1, {0, 1})
    mean.add(0.0)
    assert mean.given(0.3) == pytest.approx(0.3), "of one answer alone all answers know as much"
    mean.enter(0, {0, 1})
    assert mean.given(0.3) == pytest.approx((1 + 0.25 + 4 * 0.3) / (1 + 0.5 + 0.25 + 4))
    mean.add(1.0)
    assert mean.given(0.3) == pytest.approx((1 + 0.5 + 0.125 + 4 * 0.3) / (1 + 0.5 + 0.25 + 0.125 + 4))


def test_a_mean_of_the_only_group_is_that_of_all_answers() -> None:
    """What was seen before any prompt is none of a group."""
    mean = GroupMean(decay=0.5, weight=4.0)
    mean.add(0.0)
    assert mean.given(0.3) == pytest.approx(0.3)
    for _ in range(2):
        mean.enter(0, {0})
        mean.add(1.0)
        assert mean.given(0.3) == pytest.approx(0.3)


def test_a_mean_of_a_group_that_is_not_remembered_is_forgotten() -> None:
    mean = GroupMean(decay=0.5, weight=4.0)
    for group in (0, 1, 2):
        mean.enter(group, {0, 1, 2})
        mean.add(1.0)
    mean.enter(0, {0, 1, 2})
    assert mean.given(0.3) > 0.3
    mean.enter(1, {1, 2})
    mean.enter(0, {0, 1, 2})
    assert mean.given(0.3) == pytest.approx(0.3)


def _learn(calibration: Calibration, *, hit: bool) -> None:
    for _ in range(30):
        calibration.learn([(calibration.cell("d", 0, 0.8), hit)])
        for rate in (calibration.ahead("d").first, calibration.ahead("d").later):
            rate.add(hit)


def _expected(calibration: Calibration) -> list[float]:
    ahead = calibration.ahead("d")
    return [calibration.cell("d", 0, 0.8).value, ahead.first.value, ahead.later.value]


def test_guesses_are_judged_by_the_answers_to_prompts_of_the_group() -> None:
    """A drafter that is right in copies and wrong in conversation: known as soon as the prompt is."""
    calibration = Calibration()
    for n in range(3):
        calibration.begin((*_COPY, 50 + n))
        _learn(calibration, hit=True)
        calibration.begin((*_CHAT, 50 + n))
        _learn(calibration, hit=False)
    calibration.begin((*_COPY, 90))
    copies = _expected(calibration)
    calibration.begin((*_CHAT, 90))
    chats = _expected(calibration)
    calibration.begin((*_TEMPLATE, 99))
    others = _expected(calibration)
    for copy, other, chat in zip(copies, others, chats, strict=True):
        assert copy > 0.75
        assert chat < 0.15
        assert chat < other < copy


def test_what_is_seen_first_in_an_answer_is_learned_of_its_group() -> None:
    calibration = Calibration()
    calibration.begin(_COPY)
    _learn(calibration, hit=True)
    calibration.begin(_CHAT)
    _learn(calibration, hit=False)
    others = _expected(calibration)
    calibration.begin(_COPY)
    for copy, other in zip(_expected(calibration), others, strict=True):
        assert copy > other + 0.3


def _later_run(calibration: Calibration) -> Calibration:
    """What the next run begins with."""
    return Calibration.of(json.loads(json.dumps(calibration.kept())))


def _of_two_tasks() -> Calibration:
    calibration = Calibration()
    for n in range(3):
        calibration.begin((*_COPY, 50 + n, 4, 5, 6))
        _learn(calibration, hit=True)
        calibration.begin((*_CHAT, 50 + n, 7, 8, 9))
        _learn(calibration, hit=False)
    return calibration


def test_a_later_run_knows_the_groups_of_an_earlier_one() -> None:
    calibration = _later_run(_later_run(_of_two_tasks()))
    expected = []
    for beginning in (_COPY, _CHAT, (*_TEMPLATE, 99)):
        calibration.begin((*beginning, 90, 91, 92, 93, 94))
        expected.append(_expected(calibration))
    for copy, chat, other in zip(*expected, strict=True):
        assert copy > 0.75
        assert chat < 0.15
        assert chat < other < copy


def test_a_later_run_knows_how_fast_the_answers_of_a_group_are() -> None:
    calibration = Calibration()
    value = TimeValue(calibration.speeds)
    for beginning, tokens in ((_COPY, 8), (_CHAT, 1)) * 20:
        calibration.begin((*beginning, 50, 51, 52))
        value.enter(calibration.group, calibration.groups)
        for _ in range(8):
            value.ahead(1.0)
            value.observe(tokens, 1.0)
    calibration = _later_run(calibration)
    later, speeds = TimeValue(calibration.speeds), []
    for beginning in (_COPY, _CHAT):
        calibration.begin((*beginning, 60, 61, 62))
        later.enter(calibration.group, calibration.groups)
        speeds.append(later.ahead(1.0))
    assert speeds[0] > 3
    assert speeds[1] < 1.2


def test_another_system_prompt_begins_without_the_groups_of_an_earlier_run() -> None:
    """Prompts that have only this one in common are no group."""
    calibration = _later_run(_of_two_tasks())
    groups = set()
    for n in range(5):
        calibration.begin((77, 78, 79, n, 80, 81, 82))
        groups.add(calibration.group)
    assert len(groups) == 5


def test_no_prompt_is_kept_for_other_runs() -> None:
    """Of the last 300 tokens of a prompt are kept at most four times 16 bits."""
    calibration = _of_two_tasks()
    calibration.begin((*_COPY, *range(40_000, 40_300)))
    kept = json.loads(json.dumps(calibration.kept()))["prompts"]
    group, marks = kept[-1]
    assert group == calibration.group
    assert [length for length, _ in marks] == [3, 5, 11, 35, 131]
    assert all(0 <= digest < 1 << 16 for _, digest in marks)


def test_of_a_prompt_without_others_all_counts_as_a_template() -> None:
    """Nothing tells which part of it is the user's."""
    groups = PromptGroups()
    groups.join((*_COPY, 50, 51, 52))
    ((_, marks),) = groups.kept()
    assert [length for length, _ in marks] == [8]


def test_the_controller_keeps_how_fast_the_answers_of_groups_were() -> None:
    trace = next(iter(parts(Trace.load("mix"))))
    world = World(trace, CURVES[0])
    controller = Adaptive([world.look_up], world.prices, clock=world.clock)
    world.run(controller)
    assert any(controller.calibration.kept()["speeds"])


def test_a_group_of_a_later_run_has_a_number_of_its_own() -> None:
    calibration = _later_run(_of_two_tasks())
    known = {*calibration.groups}
    calibration.begin((*_TEMPLATE, 99, 98, 97, 96))
    assert calibration.group not in known


def test_a_kept_prompt_is_recognised_by_its_beginning_alone() -> None:
    tokens = (1, 2, 3, *range(100))
    kept = Fingerprint.of(5, tokens, 3)
    assert kept.shared(tokens) == 35
    assert kept.shared(tokens[:20]) == 11
    assert kept.shared((*tokens[:10], 77, *tokens[11:])) == 5
    assert kept.shared((1, 2, 3)) == 3
    assert kept.shared((1, 2)) is None
    assert kept.shared((1, 2, 4, *tokens[3:])) is None
    assert Fingerprint.of(5, (), 0).shared(()) == 0


@pytest.mark.parametrize(
    "kept", [3, [1], [[1, [[1, 2, 3]]]], [["a", []]], [[1, 2]], [[1, [["x", 2]]]], [[math.inf, []]], [None]]
)
def test_prompts_that_make_no_sense_are_left_out(kept: object) -> None:
    calibration = Calibration.of({**_of_two_tasks().kept(), "prompts": kept})
    assert calibration.kept() == Calibration().kept()


@pytest.mark.parametrize("sums", [[[0, 1]], [[0, math.nan, 1]], [[0, 1, 0]], [[0, 1, math.inf]], [["a", 1, 1]], [3], 3])
def test_sums_that_make_no_sense_are_left_out(sums: object) -> None:
    kept = _of_two_tasks().kept()
    assert Calibration.of({**kept, "speeds": [sums]}).kept() == Calibration().kept()
    ahead = kept["ahead"]["d"]
    assert Calibration.of({**kept, "ahead": {"d": [*ahead[:3], sums]}}).kept() == Calibration().kept()
    first = [*ahead[0][:2], sums]
    assert Calibration.of({**kept, "ahead": {"d": [first, *ahead[1:]]}}).kept() == Calibration().kept()


def test_a_rate_of_a_group_is_a_share() -> None:
    kept = _of_two_tasks().kept()
    kept["ahead"]["d"][1][2] = [[0, 30.0, 3.0]]
    assert Calibration.of(kept).kept() == Calibration().kept()


def test_later_runs_gain_by_the_groups_of_earlier_ones() -> None:
    """Of five texts, of which each is faster or hardly slower."""
    without, known = (later.speeds(("lookup",), variant) for variant in ("without groups", "all of it"))
    assert geometric_mean(known.values()) > 1.005 * geometric_mean(without.values())
    assert all(known[text] > 0.995 * speed for text, speed in without.items())


@pytest.mark.parametrize("with_model", [True, False])
def test_a_mix_of_tasks_gains_by_groups(with_model: bool) -> None:
    """Dialogues, copies, rewritten texts and lists, of 2600 tokens in all."""
    trace = next(parts(Trace.load("kinds")))
    grouped = speedup(trace, CURVES[0], with_model=with_model)
    with VARIANTS["without groups"]():
        alike = speedup(trace, CURVES[0], with_model=with_model)
    assert grouped > 1.01 * alike
