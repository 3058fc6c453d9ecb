"""Drafters one pass of which makes guesses at several depths: what is paid for, planned and asked.

A second is worth a token here, so prices are in tokens.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from edgespec.controller.adaptive import Adaptive
from edgespec.controller.calibration import Ahead
from edgespec.controller.expansion import Expansion
from edgespec.controller.fixed import Fixed
from edgespec.controller.priced_drafter import PricedDrafter
from edgespec.drafters.checked import Checked
from edgespec.drafters.failsafe import Failsafe
from edgespec.errors import DrafterError
from edgespec.prices import Prices
from edgespec.types import Guess

from .control_runs import bought
from .helpers import BlockFunctionDrafter, Clock, round_context, table_drafter, trusting
from .test_expansion import drawn, expecting, growing

RULES = ("match", "rejection")
SURE = 0.97


def block(
    prices: Sequence[float], *, clock: Clock | None = None, q: bool = False, depths: int = 99
) -> BlockFunctionDrafter:
    """A drafter that says 10, 11, 12, ... by depth, and doubts that it might be 20, 21, 22, ..., up to a depth."""

    def guesses(_context: Sequence[int], path: Sequence[int]) -> Sequence[Guess]:
        if len(path) >= depths:
            return ()
        if q:
            return [drawn(10 + len(path), SURE)]
        return [Guess(10 + len(path), SURE), Guess(20 + len(path), 0.4)]

    return BlockFunctionDrafter(guesses, prices, clock=clock)


def drafted(
    drafter: BlockFunctionDrafter,
    ahead: Ahead,
    cost: Sequence[float],
    *,
    rule: str = "match",
    trees: float | None = None,
) -> Expansion:
    """What grows from its guesses, asked if that pays."""
    expansion = growing(cost=cost, rule=rule, trees=trees, calibration=trusting("block"))
    expansion.draft(PricedDrafter(drafter, ahead, Clock().perf_counter), ask=False)
    return expansion


@pytest.mark.parametrize("rule", RULES)
def test_one_pass_pays_for_all_its_guesses(rule: str) -> None:
    """Four steps at this price would not pay."""
    cost = [0.2 * n for n in range(5)]
    for prices, n in ([1.3], 0), ([1.3] * 4, 4), ([1.3] * 3, 3):
        drafter = block(prices, q=rule == "rejection")
        expansion = drafted(drafter, expecting(0.9), cost, rule=rule)
        assert drafter.passes == [((), n)] * (n > 0)
        assert len(expansion.bought()) == n


@pytest.mark.parametrize(
    ("prices", "planned"),
    [
        ([0.1, 0.2, 0.3, 0.4, 0.5], 5),
        ([0.1, 0.2, 3.0, 3.1, 3.2], 2),  # a step in the price of passes
        ([0.1, 0.8, 0.1, 3.1, 3.2], 3),  # a wider pass may be the cheaper one
        ([0.5] * 9, 9),  # what costs nothing is had, though a shorter draft is expected
    ],
)
def test_a_pass_makes_as_many_guesses_as_are_worth_their_price(prices: Sequence[float], planned: int) -> None:
    drafter = block(prices)
    drafted(drafter, expecting(0.9), [0.0, *(0.1 * n for n in range(1, 6)), *[9.0] * 9])
    assert drafter.passes[0] == ((), planned)


def test_another_pass_goes_on_where_the_last_one_ended() -> None:
    drafter = block([0.2, 0.3, 0.4])
    expansion = drafted(drafter, expecting(0.95), [0.05 * n for n in range(8)])
    assert drafter.passes == [((), 3), ((10, 11, 12), 3), ((10, 11, 12, 13, 14, 15), 1)]
    assert expansion.tree.draft(expansion.bought()).tokens == tuple(range(10, 17))


def test_it_goes_on_from_a_look_up() -> None:
    lookup = table_drafter("lookup", {(): [Guess(5, SURE)], (5,): [Guess(6, SURE)]})
    drafter = block([0.2] * 3)
    expansion = growing(lookup, cost=[0.05 * n for n in range(6)], calibration=trusting("lookup", "block"))
    expansion.ask_free()
    expansion.draft(PricedDrafter(drafter, expecting(0.9), Clock().perf_counter), ask=False)
    assert drafter.passes[0] == ((5, 6), 3)
    assert expansion.tree.draft(expansion.bought()).tokens == (5, 6, 12, 13, 14)


def test_siblings_at_every_depth_grow_where_trees_pay() -> None:
    """One pass, and its rows serve all branches: below a sibling stands what stands below the first guess."""
    drafter = block([1.5] * 3)
    expansion = drafted(drafter, expecting(0.9, 0.6), [0.01 * n for n in range(9)], trees=0.0)
    assert drafter.passes == [((), 3)]
    assert len(set(drafter.asked)) == len(drafter.asked)
    draft = expansion.tree.draft(expansion.bought())
    assert {10, 11, 12, 20, 21} <= set(draft.tokens)
    below = [draft.tokens[child] for child in draft.children(draft.tokens.index(20))]
    assert below == [11]


def test_guesses_that_cost_nothing_are_not_drawn_beyond_what_pays_to_verify() -> None:
    """Under rejection all that is drawn must be verified."""
    cost = (0.0, 0.1, 0.2, *[20.0] * 9)
    drafter = block([0.2] * 9, q=True)
    expansion = drafted(drafter, expecting(0.9), cost, rule="rejection")
    assert drafter.asked == [(), (10,)]
    assert len(expansion.bought()) == 2


def test_a_block_that_is_all_it_can_guess_keeps_its_price() -> None:
    """Heads guess a fixed number of tokens; asking for more takes no time, which is no pass's price."""
    clock = Clock()
    drafter = block([0.2] * 3, clock=clock, depths=3)
    priced = PricedDrafter(drafter, expecting(0.95), clock.perf_counter)
    for _ in range(6):
        priced.begin(round_context())
        expansion = growing(cost=[0.05 * n for n in range(8)], calibration=trusting("block"))
        expansion.draft(priced, ask=False)
        assert len(expansion.bought()) == 3
        priced.begin(round_context())
    assert priced.first.seconds == pytest.approx(0.2)
    assert priced.later.seconds == 0.2


def test_what_a_pass_takes_is_its_price_whatever_it_guesses() -> None:
    """The machine is twice as slow as it was measured: the passes of one width teach the prices of all."""
    clock = Clock()
    drafter = block([0.2, 0.3, 0.4, 0.5], clock=clock)
    priced = PricedDrafter(drafter, Ahead(), clock.perf_counter)
    drafter.block_prices = (0.4, 0.6, 0.8, 1.0)
    for _ in range(5):
        priced.begin(round_context())
        priced.guess((), 1, 3)
        priced.guess((10,), 1)
        priced.guess((10, 11, 12), 1, 2)
    priced.begin(round_context())
    assert [priced.price(0, n) for n in range(1, 6)] == pytest.approx([0.4, 0.6, 0.8, 1.0, 1.4])
    priced.guess((), 1, 3)
    assert [priced.price(0, n) for n in range(1, 6)] == pytest.approx([0.0, 0.0, 0.0, 0.4, 0.6])
    assert [priced.has_guessed(depth) for depth in range(4)] == [True, True, True, False]


@pytest.mark.parametrize("trees", [False, True])
def test_an_always_wrong_block_is_hardly_asked(trees: bool) -> None:
    clock, prices = Clock(), Prices([1.0 + 0.01 * n for n in range(16)])
    drafter = block([0.05] * 8, clock=clock)
    controller = Adaptive([drafter], prices, trees=trees, clock=clock.perf_counter)
    for n in range(300):
        if n == 100:
            drafter.passes.clear()
        draft = controller.choose(round_context(), 15)
        controller.observe(bought(draft, (), 99, seconds=prices.price(1 + len(draft))))
    assert len(drafter.passes) <= 20


def test_fixed_drafts_plan_blocks_no_longer_than_needed() -> None:
    for k, passes in (2, [2]), (4, [4]), (6, [4, 4]):
        drafter = block([0.1] * 4)
        assert len(Fixed([drafter], k).choose(round_context(), 9)) == k
        assert [planned for _, planned in drafter.passes] == passes


def test_wrappers_pass_blocks_on() -> None:
    drafter = block([0.1, 0.2])
    for wrapped in (Failsafe(drafter), Checked(drafter, "block", 99), Failsafe(Checked(drafter, "block", 99))):
        assert tuple(wrapped.block_prices) == (0.1, 0.2)
        wrapped.begin(round_context())
        wrapped.plan(1)
        wrapped.guess((), 1)
        assert drafter.passes.pop() == ((), 1)
    plain = table_drafter("plain", {}, 0.3)
    assert tuple(Failsafe(plain).block_prices) == (0.3,)
    Failsafe(plain).plan(3)


@pytest.mark.parametrize("prices", [(), [0.1, -1.0], [0.1, "much"], 0.3, [0.1] * 300])
def test_malformed_block_prices_are_refused(prices: object) -> None:
    drafter = block([0.1])
    drafter.block_prices = prices  # type: ignore[assignment]
    with pytest.raises(DrafterError, match="block_prices"):
        _ = Checked(drafter, "block", 99).block_prices
