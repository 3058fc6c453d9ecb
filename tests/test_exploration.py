"""Drafts bought to learn prices: when, and at which prices."""

from __future__ import annotations

from edgespec.controller.exploration import Explorer


def waits(explorer: Explorer, pace: float | None, times: int) -> list[int]:
    """Rounds until each of the next `times` explorations, all of which end alike."""
    found = []
    for _ in range(times):
        rounds = 0
        while not explorer.due:
            explorer.observe()
            rounds += 1
        explorer.explored(pace)
        found.append(rounds)
    return found


def test_a_price_that_proves_right_doubles_the_wait() -> None:
    assert waits(Explorer(), 1.0, 4) == [16, 32, 64, 128]


def test_a_price_that_proves_wrong_or_no_draft_does_not() -> None:
    explorer = Explorer()
    assert waits(explorer, 1.0, 2) == [16, 32]
    assert waits(explorer, None, 2) == [64, 64]
    assert waits(explorer, 0.5, 3) == [64, 16, 16]


def test_only_what_wide_passes_cost_beyond_a_plain_one_is_doubted() -> None:
    assert Explorer.doubted([2.0, 3.5, 5.0]) == [2.0, 2.5, 3.0]


def test_no_pass_is_thought_to_take_longer_than_as_many_plain_steps() -> None:
    assert Explorer.doubted([3.0, 1e20]) == [3.0, 4.0]
