"""The guard, on losses and gains that are known."""

from __future__ import annotations

import pytest

from edgespec.controller.backoff import Guard


def run(guard: Guard, rounds: int, tokens: int, steps: float) -> int:
    """So many rounds alike; how many of them were paused, and so plain."""
    paused = 0
    for _ in range(rounds):
        paused += guard.pausing
        guard.observe(*((1, 1.0) if guard.pausing else (tokens, steps)))
    return paused


def test_what_gains_is_never_paused() -> None:
    assert run(Guard(), 1000, 2, 1.9) == 0
    assert run(Guard(), 1000, 1, 1.02) == 0, "nor what loses hardly anything: windows are short, and text varies"


def test_what_loses_is_paused_longer_each_time() -> None:
    guard = Guard()
    pauses, length = [], 0
    for _ in range(600):
        if guard.pausing:
            length += 1
        elif length:
            pauses.append(length)
            length = 0
        guard.observe(1, 1.0 if guard.pausing else 1.1)
    assert pauses == [16, 32, 64, 128, 128]


def test_a_gain_makes_the_next_pause_short_again() -> None:
    guard = Guard()
    run(guard, 32 + 16 + 16 + 32, 1, 1.1)
    assert not guard.pausing
    run(guard, 16, 2, 1.0)
    assert run(guard, 32 + 16 + 16 + 32 + 16, 1, 1.1) == 16 + 32, "the first two pauses, not the third"


@pytest.mark.parametrize(("steps", "paused"), [(1.01, 32), (0.99, 0)])
def test_what_was_paused_must_not_lose_again(steps: float, paused: int) -> None:
    guard = Guard()
    assert run(guard, 32 + 16, 1, 1.1) == 16
    assert run(guard, 16 + 32, 1, steps) == paused


@pytest.mark.parametrize(("steps", "paused"), [(0.99, 32), (0.95, 16)])
def test_only_a_gain_makes_up_for_a_pause(steps: float, paused: int) -> None:
    """Half a gain leaves the next pause as long as it would have been."""
    guard = Guard()
    run(guard, 32 + 16, 1, 1.1)
    run(guard, 16, 1, steps)
    assert run(guard, 64, 1, 1.1) == paused


def test_one_dear_round_is_no_loss() -> None:
    guard = Guard()
    run(guard, 31, 2, 1.2)
    guard.observe(1, 20.0)
    assert not guard.pausing


def test_a_pause_is_over_where_the_text_goes_as_it_went_before() -> None:
    """Somebody is sure two times in a row; once may be chance. Only every fourth round may cost that much."""
    guard = Guard()
    run(guard, 32, 1, 1.1)
    heard = []
    says = iter((True, False, True, True))
    while guard.pausing:
        heard.append(guard.listening)
        if guard.listening:
            guard.hear(next(says))
        guard.observe(1, 1.0)
    assert heard == [True, False, False, False] * 3 + [True]
    assert not guard.listening
