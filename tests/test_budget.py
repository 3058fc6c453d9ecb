"""The account of what speculation may lose."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from edgespec.controller.adaptive import Adaptive
from edgespec.controller.budget import Budget, Instalments
from edgespec.controller.calibration import Calibration
from edgespec.prices import Prices
from edgespec.types import Draft

from .control_runs import book, bought
from .helpers import round_context, trusting


def run(budget: Budget, rounds: int, tokens: int, steps: float) -> tuple[int, float]:
    """Rounds that speculated, each bringing `tokens` for `steps`, and what all of them lost; others are plain."""
    speculated, lost = 0, 0.0
    for _ in range(rounds):
        if budget.is_left:
            speculated += 1
            lost += steps - tokens
            budget.observe(tokens, steps)
        else:
            budget.observe(1, 1.0)
    return speculated, lost


@pytest.mark.parametrize("steps", [1.004, 1.05, 2.0, 6.0])
def test_no_more_is_lost_than_a_share_of_the_time(steps: float) -> None:
    speculated, lost = run(Budget(), 5000, 1, steps)
    time = 5000 + lost
    assert lost <= 0.01 * time + 4 + steps
    assert speculated >= 9, "it is tried again and again"
    assert (speculated == 5000) == (steps - 1 <= 0.01)


def test_what_gains_is_never_stopped() -> None:
    assert run(Budget(), 1000, 3, 2.0)[0] == 1000


def test_gains_of_long_ago_pay_for_no_losses_now() -> None:
    budget = Budget()
    run(budget, 1000, 3, 2.0)
    assert run(budget, 100, 1, 2.0)[0] <= 50


def test_gains_that_vary_are_not_stopped_by_bad_luck() -> None:
    random = np.random.default_rng(0)
    budget, stopped = Budget(), 0
    for _ in range(5000):
        stopped += not budget.is_left
        budget.observe(int(random.choice([1, 4])), 2.0)
    assert stopped < 50


@pytest.mark.parametrize(("gained", "left"), [(-3.0, 4.0), (2.0, 4.0), (9.0, 9.0), (48.0, 16.0)])
def test_gains_of_an_earlier_run_pay_for_some_losses_of_this_one(gained: float, left: float) -> None:
    assert Budget(gained=gained).left == left
    speculated, lost = run(Budget(gained=gained), 5000, 1, 3.0)
    assert lost <= 0.01 * (5000 + lost) + left + 3.0
    assert speculated >= left / 2


def test_what_is_left_is_known_to_the_next_run() -> None:
    first = Adaptive([book((7, 0.9))], Prices([1.0, 1.1, 1.2, 1.3]))
    for _ in range(20):
        first.observe(bought(Draft.chain((7, 7), "book"), (0, 1), 7, 7, 5))
    assert first.calibration.gained == pytest.approx(first._budget.left)
    again = Adaptive([book((7, 0.9))], Prices([1.0, 1.1, 1.2, 1.3]), Calibration.of(first.calibration.kept()))
    assert again._budget.left == 16.0
    assert again._budget._priced == 12.0


@pytest.mark.parametrize(("drafters", "goes_on"), [(1, False), (2, True), (3, True)])
def test_prompts_read_by_several_drafters_do_not_end_speculation(drafters: int, goes_on: bool) -> None:
    """The first rounds take six steps longer, for the drafters read the prompt."""
    priced = [book((7, 0.9), name=f"model{n}", step_price=0.1) for n in range(drafters)]
    controller = Adaptive([book((7, 0.9)), *priced], Prices([1.0, 1.1, 1.2, 1.3]))
    for _ in range(4):
        controller.observe(bought(Draft(), (), 5, drafting=1.5))
    assert controller._budget.is_left == goes_on


@pytest.mark.parametrize("overhead", [0.002, 0.0, 0.02, 0.1])
def test_a_pause_ends_whatever_rounds_take_beside_their_passes(overhead: float) -> None:
    """Bookkeeping may take more of a plain step than the share that refills the budget. Pauses never ended."""
    controller = Adaptive([book((7, 0.9))], Prices([1.0, 1.1, 1.2, 1.3]))
    while not controller.is_paused:
        controller.observe(bought(Draft.chain((7, 7, 7), "book"), (), 5, drafting=2.0))
    debt, rounds = -controller._budget.left, 0
    while controller.is_paused:
        controller.observe(bought(Draft(), (), 5, drafting=overhead))
        rounds += 1
        assert rounds < 1000, "it never ends"
    assert rounds == pytest.approx(debt / (0.01 - min(overhead, 0.005)), abs=3), (
        "half of 1% of the time pays it at least"
    )


def test_a_plain_step_that_a_draft_made_dear_is_charged_in_a_pause_too() -> None:
    """Just after a wider pass a GPU records its graph again: the draft before the pause has cost that."""
    controller = Adaptive([book((7, 0.9))], Prices([1.0, 1.1, 1.2, 1.3]))
    while not controller.is_paused:
        controller.observe(bought(Draft.chain((7, 7, 7), "book"), (), 5, drafting=2.0))
    before = controller._budget.left
    controller.observe(replace(bought(Draft(), (), 5, seconds=2.0), settled=False))
    assert controller._budget.left == pytest.approx(before - 1.0 + 0.02)


def test_free_drafters_go_on_where_those_with_a_price_have_lost_their_part() -> None:
    """Three are asked in vain, and no look-up knows anything; then one does."""
    lookup = book()
    priced = [book(name=f"model{n}", step_price=0.5) for n in range(3)]
    prices = Prices([1.0, 1.1, 1.2, 1.3])
    controller = Adaptive([lookup, *priced], prices, trusting("lookup"))
    for _ in range(200):
        asked = sum(len(drafter.asked) for drafter in priced)
        assert not controller.choose(round_context(), 3)
        times = sum(len(drafter.asked) for drafter in priced) - asked
        controller.observe(bought(Draft(), (), 5, drafting=1.5 * times))
    assert not controller._budget.is_left_for_priced
    assert not controller.is_paused
    lookup.guess = book((7, 0.9)).guess  # type: ignore[method-assign]
    assert controller.choose(round_context(), 3).tokens == (7,)


def test_a_drafter_with_a_price_that_lost_more_than_its_part_owes_the_rest_alone() -> None:
    """Its first guesses took 12 plain steps, three times what may be lost then. Look-ups were paused for it."""
    lookup, model = book((7, 0.9)), book(name="model", step_price=0.1)
    controller = Adaptive([lookup, model], Prices([1.0, 1.1, 1.2, 1.3]), trusting("lookup"))
    budget, spent = controller._budget, 0.0
    budget.observe(1, 13.0, asked=True)
    assert budget.is_left
    assert not budget.is_left_for_priced
    assert controller.choose(round_context(), 3).tokens == (7,)
    assert not model.asked
    while not budget.is_left_for_priced:
        budget.observe(1, 1.0)
        spent += 0.01
    assert spent == pytest.approx(8.9 / 0.75, rel=0.01), "three quarters of 1% of the time pay it off"
    assert budget.left == pytest.approx(1.13 + spent / 4, rel=0.02)


@pytest.mark.parametrize(("owing", "refill"), [(False, 0.01), (True, 0.0075)])
def test_a_pause_ends_whatever_its_rounds_take_and_pays_what_is_owed_too(owing: bool, refill: float) -> None:
    budget, rounds = Budget(1), 0
    if owing:
        budget.observe(1, 9.0, asked=True)
    budget.observe(1, 1.0 + budget.left + 2.0)
    left, owed = budget.left, budget._priced
    while not budget.is_left:
        budget.observe(1, 1.0 + budget.pause_charge)
        rounds += 1
    assert rounds == pytest.approx(-left / (refill / 2), rel=0.01)
    assert budget._priced == pytest.approx(owed + (0.0025 if owing else 0.0075) * rounds, rel=0.02)


def test_gains_of_long_ago_pay_for_few_losses_of_drafters_with_a_price() -> None:
    budget = Budget(1)
    for _ in range(100):
        budget.observe(3, 1.0, asked=True)
    assert budget.left == 48.0
    budget.observe(1, 38.0, asked=True)
    assert not budget.is_left_for_priced, "three quarters of 48"
    assert budget.is_left


def test_what_is_lost_by_all_is_bounded_where_drafters_with_a_price_owe() -> None:
    """Free drafters lose whatever they may, and those with a price three steps at once whenever they may be asked."""
    budget, lost, rounds = Budget(1), 0.0, 20_000
    for _ in range(rounds):
        if budget.is_left and budget.is_left_for_priced:
            budget.observe(1, 4.0, asked=True)
            lost += 3.0
        elif budget.is_left:
            budget.observe(1, 1.1)
            lost += 0.1
        else:
            budget.observe(1, 1.0)
    assert 0.009 * rounds < lost < 0.01 * (rounds + lost) + 4 + 3


def test_a_reading_is_owed_by_drafters_with_a_price_alone() -> None:
    budget, instalments = Budget(1), Instalments()
    budget.observe(1, 1.0, instalments.pay(64.0), asked=True)
    for _ in range(63):
        budget.observe(1, 1.0, instalments.pay(0.0))
    assert not budget.is_left_for_priced
    assert budget.left > 1.0


@pytest.mark.parametrize("left", [0.01, 0.5, 4.0])
def test_little_credit_buys_long_drafts_where_short_ones_cannot_pay(left: float) -> None:
    """An EPYC's passes over 2 tokens take 2.3 plain steps, those over 16 take 4.7. When a draft could lose no more than
    was left, or one plain step, none was bought again after the first credit was spent."""
    lookup = book(*[(7, 0.999)] * 15)
    curve = [1.0, 2.27, 2.8, 3.26, 4.18, 3.97, 3.76, 3.55, 3.69, 3.84, 3.98, 4.13, 4.27, 4.42, 4.56, 4.71]
    controller = Adaptive([lookup], Prices(curve), trusting("lookup"))
    controller._budget._left = left
    assert len(controller.choose(round_context(), 15)) == 15
