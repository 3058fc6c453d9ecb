"""Rounds without a decision."""

from __future__ import annotations

import math

import pytest

from edgespec.controller.adaptive import Adaptive
from edgespec.controller.expansion import Expansion
from edgespec.controller.skipping import Skipping
from edgespec.prices import Prices
from edgespec.types import Draft, Guess, Round
from edgespec.verify import RoundContext

from .helpers import round_context, table_drafter

CONTEXT = [1, 2, 3]
DEAR = [1.0 * n for n in range(1, 17)]


def rounds_between(skipping: Skipping, decisions: int, chance: float = 0.0, until_probe: float = math.inf) -> list[int]:
    """Rounds without a decision between `decisions` of them, all of which ask nobody."""
    found = []
    for _ in range(decisions):
        skipping.decided(CONTEXT, 0.3, until_probe, idle=True)
        rounds = 0
        while skipping.is_due(CONTEXT) and skipping.skips(chance):
            rounds += 1
        found.append(rounds)
    return found


def test_rounds_between_decisions_grow_to_a_limit() -> None:
    assert rounds_between(Skipping(), 6) == [1, 3, 7, 8, 8, 8]


def test_after_a_draft_each_round_is_decided() -> None:
    skipping = Skipping()
    rounds_between(skipping, 4)
    skipping.decided(CONTEXT, 0.3, math.inf, idle=False)
    assert not skipping.is_due(CONTEXT)
    assert rounds_between(skipping, 2) == [1, 3]


def test_a_likely_guess_of_a_free_drafter_is_decided_on() -> None:
    assert rounds_between(Skipping(), 3, chance=0.31) == [0, 0, 0]
    assert rounds_between(Skipping(), 3, chance=0.3) == [1, 3, 7]


def test_a_probe_is_not_delayed() -> None:
    assert rounds_between(Skipping(), 4, until_probe=4.0) == [1, 3, 3, 3]
    assert rounds_between(Skipping(), 4, until_probe=3.5) == [1, 2, 2, 2], "due after the fourth round at the latest"
    assert rounds_between(Skipping(), 4, until_probe=1.0) == [0, 0, 0, 0]


def test_another_answer_begins_with_a_decision() -> None:
    skipping = Skipping()
    rounds_between(skipping, 3)
    skipping.decided(CONTEXT, 0.3, math.inf, idle=True)
    assert skipping.is_due(CONTEXT)
    assert not skipping.is_due(list(CONTEXT)), "equal, and of another answer"


@pytest.mark.parametrize("unsure", [0.05, 0.99])
def test_where_nothing_pays_most_rounds_are_not_decided(monkeypatch: pytest.MonkeyPatch, unsure: float) -> None:
    decided = 0
    begin = Adaptive._begin_expansion

    def counted(self: Adaptive, round_context: RoundContext, limit: int) -> Expansion:
        nonlocal decided
        decided += 1
        return begin(self, round_context, limit)

    monkeypatch.setattr(Adaptive, "_begin_expansion", counted)
    controller = Adaptive([table_drafter("free", {(): [Guess(5, unsure)]}, 0.0)], Prices(DEAR))
    for n in range(200):
        controller.choose(round_context(CONTEXT), 15)
        controller.observe(Round(Draft(), (), (9,), 1.0, 0.0, n))
    assert 20 <= decided <= 60


def test_free_guesses_of_rounds_without_a_decision_are_learned_from() -> None:
    controller = Adaptive([table_drafter("free", {(): [Guess(5, 0.6)]}, 0.0)], Prices(DEAR))
    for n in range(100):
        controller.choose(round_context(CONTEXT), 15)
        controller.observe(Round(Draft(), (), (5,), 1.0, 0.0, n))
    (share,) = controller.calibration.summary().values()
    assert share.right == 1.0
    assert controller.calibration.cell("free", 0, 0.6).rate.tries == pytest.approx(
        sum(0.99**n for n in range(99)), abs=2
    )
