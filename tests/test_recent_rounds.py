"""Rounds compared with plain decoding again, once plain steps show that the machine has changed its pace."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from edgespec.controller.adaptive import Adaptive
from edgespec.controller.budget import Budget
from edgespec.controller.recent_rounds import Compared, Correction, RecentRounds
from edgespec.prices import Prices
from edgespec.types import Draft

from .control_runs import book, bought
from .helpers import round_context, trusting

CURVE = (1.0, 1.5, 1.8, 1.8)


@pytest.mark.parametrize(
    ("pace", "plain", "gained"),
    [
        (1.5, 1.5, 6.0 - 4.0),  # slow as plain steps after it
        (2.4, 1.5, 6.0 - 4.0),
        (1.25, 1.5, 6.0 - 4.0),  # nearer to the new pace, by the ratio: the middle is 1.22
        (1.2, 1.5, 0.0),
        (1.0, 1.5, 0.0),  # as fast as before: the machine became slow after it
        (0.6, 0.5, 6.0 - 12.0),
        (0.8, 0.5, 0.0),
        (1.0, 1.0, 0.0),
        (1.7, 1.0, 0.0),  # a hiccup
    ],
)
def test_a_round_is_compared_again_if_its_pass_shows_the_new_pace(pace: float, plain: float, gained: float) -> None:
    assert Compared(100, 6.0, 1.0, pace, asked=False).gained(plain) == pytest.approx(gained)


def test_rounds_are_compared_with_the_plain_step_at_their_own_cache_length_and_forgotten() -> None:
    recent = RecentRounds()
    recent.add(Compared(100, 6.0, 1.0, 1.5, asked=False))
    recent.add(Compared(200, 6.0, 2.0, 1.5, asked=True))
    recent.add(Compared(200, 3.0, 2.0, 1.5, asked=True))
    for correction in (Correction(2.0, 1.0 + 0.5), Correction(0.0, 0.0)):
        assert recent.correct(lambda held: 1.5 * held / 100) == pytest.approx(correction)


def test_the_budget_takes_back_what_was_not_lost() -> None:
    budget = Budget(1)
    budget.observe(1, 3.0)
    budget.correct(1.5, 0.0)
    assert budget.left == pytest.approx(4.0 - 2.0 + 0.03 + 1.5)
    budget.correct(-9.0, 0.0)
    assert not budget.is_left
    budget.correct(99.0, 99.0)
    assert (budget.left, budget._priced) == (48.0, 36.0)


@pytest.mark.parametrize("back", [1.0, 5.0, 9.0])
def test_of_a_loss_beyond_their_part_drafters_with_a_price_owe_the_rest_after_a_correction_too(back: float) -> None:
    """As if the round had taken so much less."""
    budget, right = Budget(1), Budget(1)
    budget.observe(1, 11.0, asked=True)
    budget.correct(0.0, back)
    right.observe(1, 11.0 - back, asked=True)
    assert budget.left == pytest.approx(right.left, abs=0.2)
    assert budget._priced == pytest.approx(right._priced, abs=0.2)
    budget.correct(0.0, -back)
    assert budget._priced == pytest.approx(3.0 - 10.0, abs=0.2)


def slow_start(controller: Adaptive, prices: Prices, passes: Sequence[tuple[int, float]]) -> None:
    """Rounds of so many tokens in the pass, and the seconds it took. No draft is accepted."""
    for width, seconds in passes:
        draft = Draft.chain((7,) * (width - 1), "book") if width > 1 else Draft()
        controller.observe(bought(draft, (), 5, seconds=seconds))
        prices.observe(width, 0, seconds)


@pytest.mark.parametrize(
    ("plain", "lost"),
    [
        (1.5, 3 * 0.8),  # in a slow spell: what the rounds lost at its prices
        (1.0, 3 * 1.7),  # plain steps are as fast as ever
    ],
)
def test_a_slow_spell_is_not_charged_to_drafts(plain: float, lost: float) -> None:
    prices = Prices(CURVE)
    controller = Adaptive([book((7, 0.9))], prices)
    slow_start(controller, prices, [(4, 2.7)] * 3)
    assert controller.is_paused
    slow_start(controller, prices, [(1, plain)] * 4)
    assert controller._budget.left == pytest.approx(4.0 - lost, abs=0.25)
    assert controller.is_paused == (lost > 4)


def test_drafters_with_a_price_get_back_their_part() -> None:
    prices = Prices(CURVE)
    controller = Adaptive([book((7, 0.9), name="model", step_price=0.1)], prices, trusting("model"))
    while controller._budget.is_left_for_priced:
        draft = controller.choose(round_context(), 3)
        assert draft
        seconds = 2.0 * CURVE[len(draft)]
        controller.observe(bought(draft, (), 5, seconds=seconds, drafting=0.1))
        prices.observe(1 + len(draft), 0, seconds)
    slow_start(controller, prices, [(1, 1.6)] * 4)
    assert controller._budget.is_left_for_priced


def test_plain_steps_are_not_compared_again() -> None:
    prices = Prices(CURVE)
    controller = Adaptive([book((7, 0.9))], prices)
    slow_start(controller, prices, [(1, 1.0)])
    assert not controller._recent._rounds
    slow_start(controller, prices, [(4, 1.8)])
    assert len(controller._recent._rounds) == 1


def test_a_correction_waits_until_plain_steps_agree_on_a_price() -> None:
    prices = Prices(CURVE)
    controller = Adaptive([book((7, 0.9))], prices)
    left = []
    for passes in ([(4, 2.7)] * 3, [(1, 1.5)], [(1, 1.5)], [(1, 1.5)], [(1, 1.5)]):
        slow_start(controller, prices, passes)
        left.append(controller._budget.left)
    assert max(left[:-1]) < 0, "one or two slow plain steps may be hiccups"
    assert left[-1] > 1


def test_rounds_before_a_spell_are_not_compared_with_its_prices() -> None:
    """They were as fast as passes are on a calm machine, so they lost what they did."""
    prices = Prices(CURVE)
    controller = Adaptive([book((7, 0.9))], prices)
    slow_start(controller, prices, [(4, 1.8)] * 4)
    left = controller._budget.left
    slow_start(controller, prices, [(1, 1.5)] * 4)
    assert controller._budget.left == pytest.approx(left, abs=0.1)
