"""When a drafter with a price is asked again, and what its steps cost."""

from __future__ import annotations

import pytest

from edgespec.controller.calibration import Ahead
from edgespec.controller.draft_tree import Trial
from edgespec.controller.earnings import Earnings

from .helpers import by_book

HIT, MISS = Trial("model", 0, 0, 0, hit=True), Trial("model", 0, 0, 0, hit=False)


def earnings(step: float = 0.1) -> Earnings:
    return Earnings(by_book("model", {}, step), Ahead())


def rounds_until_due(earner: Earnings, plain: float = 1.0) -> int:
    for n in range(1000):
        if earner.due(plain):
            return n
        earner.observe(())
    raise AssertionError("never due")


def test_the_worth_is_what_asking_brought_of_late() -> None:
    """A drafter not yet known must bring something a few times before it is believed to."""
    earner = earnings()
    assert earner.worth == 0
    earner.asked(1, 0.1, 1.0)
    assert 0 < earner.worth < 0.3
    for _ in range(100):
        earner.asked(1, 0.1, 1.0)
    assert earner.worth == pytest.approx(1.0, abs=0.01)
    for _ in range(30):
        earner.asked(1, 0.1, -0.2)
    assert earner.worth < 0


def test_patience_doubles_with_every_miss_to_a_limit_and_ends_with_a_hit() -> None:
    earner = earnings()
    waits = []
    for _ in range(8):
        earner.asked(1, 0.1, 0.0)
        earner.observe([MISS])
        waits.append(rounds_until_due(earner))
    assert waits == [4, 8, 16, 32, 64, 64, 64, 64]
    earner.asked(1, 0.1, 0.0)
    earner.observe([HIT])
    assert rounds_until_due(earner) <= 4
    earner.asked(1, 0.1, 0.0)
    earner.observe([])  # it was asked, but the text ended before its word was tried
    assert rounds_until_due(earner) <= 4


def test_probes_take_three_per_cent_of_the_time_at_most() -> None:
    """Even of a drafter that is right each time it is probed and still does not pay."""
    for step, plain in ((0.1, 1.0), (0.9, 1.0), (0.1, 0.05)):
        earner = earnings(step)
        earner.asked(1, step, 0.0)
        earner.observe([HIT])
        wait = rounds_until_due(earner, plain)
        assert step / ((wait + 1) * plain) <= 0.03
        assert step / (wait * plain) > 0.02


def test_the_price_of_a_step_is_followed() -> None:
    earner = earnings(0.1)
    for _ in range(60):
        earner.asked(4, 0.8, 0.0)
    assert earner.step == pytest.approx(0.2, rel=0.02)
    for _ in range(60):
        earner.asked(3, 0.15, 0.0)
    assert earner.step == pytest.approx(0.05, rel=0.02)


def test_a_catch_up_is_no_price_of_a_step() -> None:
    """The first question after a long prompt takes as long as reading it."""
    earner = earnings(0.1)
    earner.asked(1, 60.0, 0.0)
    assert earner.step <= 0.106


def test_the_first_guess_of_a_round_is_expected_apart_from_those_that_follow() -> None:
    earner = earnings()
    first, later = earner.ahead.first.value, earner.ahead.later.value
    for _ in range(30):
        earner.observe([HIT])
    assert earner.ahead.first.value > first
    assert earner.ahead.later.value == later
    for _ in range(30):
        earner.observe([HIT, Trial("model", 0, 1, 0, hit=True), Trial("model", 0, 2, 0, hit=False)])
    assert earner.ahead.first.value > 0.9
    assert earner.ahead.later.value == pytest.approx(0.5, abs=0.1)
