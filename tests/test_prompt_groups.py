"""Groups of prompts that begin alike, and what is learned in them."""

from __future__ import annotations

import pytest

from benchmarks.simulator.groups import VARIANTS, parts, speedup
from benchmarks.simulator.trace import Trace
from benchmarks.simulator.world import CURVES
from edgespec.controller.calibration import Calibration
from edgespec.controller.prompt_groups import GroupMean, PromptGroups

_TEMPLATE = (1, 2, 3)
_COPY, _CHAT = (*_TEMPLATE, 10, 11), (*_TEMPLATE, 20)


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
    for n in range(100, 100 + 20):
        groups.join((*_TEMPLATE, n))
    assert copy not in groups.remembered
    assert len(groups.remembered) == 16
    assert groups.join((*_COPY, 5)) != copy


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


def test_prompts_are_not_kept_for_other_runs() -> None:
    calibration, without = Calibration(), Calibration()
    calibration.begin((*_COPY, 12345))
    for each in (calibration, without):
        _learn(each, hit=True)
    assert calibration.kept() == without.kept()


@pytest.mark.parametrize("with_model", [True, False])
def test_a_mix_of_tasks_gains_by_groups(with_model: bool) -> None:
    """Dialogues, copies, rewritten texts and lists, of 2600 tokens in all."""
    trace = next(parts(Trace.load("kinds")))
    grouped = speedup(trace, CURVES[0], with_model=with_model)
    with VARIANTS["without groups"]():
        alike = speedup(trace, CURVES[0], with_model=with_model)
    assert grouped > 1.01 * alike
