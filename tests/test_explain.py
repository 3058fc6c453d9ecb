"""Why drafts are as long as they are: every sentence, and when there is nothing to say."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest

from edgespec.controller.calibration import Share
from edgespec.prices import Prices
from edgespec.runtime.runtime import Runtime
from edgespec.terminal.explain import explained

Q8_0 = (1.0, 1.5, 1.8, 1.8, 2.8, 3.0, 3.0, 2.9)
DEAR = tuple(float(n) for n in range(1, 9))


def says(curve: tuple[float, ...], acceptance: dict[str, float], **steps: float) -> str:
    """What is said of a machine of these prices, and drafters of these merits and step prices."""
    return told(curve, {name: Share(right, 20) for name, right in acceptance.items()}, **steps)


def told(curve: tuple[float, ...], acceptance: dict[str, Share], **steps: float) -> str:
    """The same of drafters that were tried more or less often."""
    runtime = SimpleNamespace(prices=Prices([s / 100 for s in curve]), acceptance=acceptance, step_prices=steps)
    return explained(cast(Runtime, runtime))


@pytest.mark.parametrize(
    ("name", "who"),
    [
        ("lookup", "look-ups are"),
        ("model", "your draft model is"),
        ("cross-vocabulary", "your draft model is"),
        ("recycling", "recycled guesses are"),
        ("mine", "the drafter mine is"),
    ],
)
def test_where_drafts_pay_it_says_how_long_and_by_how_much(name: str, who: str) -> None:
    # A round of 3 commits 1 + .8 + .64 + .512 tokens in 1.8 + 3 * .02.
    assert says(Q8_0, {name: 0.8}, **{name: 0.0002}) == (
        f"this machine checks 4 tokens for the price of 1.8; {who} right 80% of the time: "
        "drafts of 3 would give 1.6x, and more where they are accepted more often"
    )


def test_where_they_do_not_it_says_from_when_on() -> None:
    assert says(Q8_0, {"lookup": 0.2}, lookup=0.0) == (
        "this machine checks 4 tokens for the price of 1.8; look-ups are right 20% of the time: "
        "drafts pay where that is above 48%"
    )
    assert says((1.0, 1.5), {"lookup": 0.2}, lookup=0.0) == (
        "this machine checks 2 tokens for the price of 1.5; look-ups are right 20% of the time: "
        "drafts pay where that is above 51%"
    ), "no wider pass is known than two"


def test_where_none_can_pay_it_says_so() -> None:
    assert says(DEAR, {"model": 0.9}, model=0.002) == (
        "this machine checks 4 tokens for the price of 4.0; your draft model is right 90% of the time: no draft can pay"
    )


def test_the_drafter_that_gives_most_is_spoken_of() -> None:
    both = {"lookup": 0.6, "model": 0.9}
    assert "draft model is right 90%" in says(Q8_0, both, lookup=0.0, model=0.0002)
    assert "look-ups are right 60%" in says(Q8_0, both, lookup=0.0, model=0.02), "too dear, however good"
    assert "draft model is right 90%" in says(DEAR, both, lookup=0.0, model=0.02), "of none that pays the better one"


def test_while_nothing_is_known_nothing_is_said() -> None:
    assert says(Q8_0, {}, lookup=0.0) == ""
    assert says((1.0,), {"lookup": 0.8}, lookup=0.0) == "", "no wider pass was measured"
    assert says(Q8_0, {"lookup+model": 0.9}, lookup=0.0, model=0.1) == "", "those that agree are no drafter"


@pytest.mark.parametrize("curve", [(1.0, 0.1, 2.0), (1e-4, 0.3, 0.33, 0.35), (1.0, 1e-3, 1e-3, 1e-3)])
def test_prices_that_cannot_be_true_are_not_explained(curve: tuple[float, ...]) -> None:
    """They made it "4 tokens for the price of 0.0", "of 3448.5" and "8.7x by drafts of 1"."""
    said = says(curve, {"lookup": 0.8}, lookup=0.0)
    assert said.startswith("the measured prices of passes are implausible")
    assert "`edgespec tune`" in said


def test_no_price_is_below_that_of_a_plain_pass() -> None:
    assert says((1.0, 0.8, 0.9, 0.9), {"lookup": 0.9}, lookup=0.0).startswith(
        "this machine checks 4 tokens for the price of 1.0; look-ups are right 90% of the time: drafts of 3 would give "
        "3.4x"
    )


def test_of_a_few_guesses_no_share_is_stated() -> None:
    """Seven right ones of seven say little; what drafts must reach is known before."""
    for tries in (1, 7, 19):
        assert told(Q8_0, {"model": Share(1.0, tries)}, model=0.0) == (
            "this machine checks 4 tokens for the price of 1.8: "
            "drafts pay where your draft model is right more than 48% of the time; "
            "too few guesses so far to know the rate"
        )
    assert "look-ups are right more than 51%" in told((1.0, 1.5), {"lookup": Share(0.0, 7)}, lookup=0.0)
    assert told(DEAR, {"mine": Share(1.0, 7)}, mine=0.0) == (
        "this machine checks 4 tokens for the price of 4.0: no draft of the drafter mine can pay"
    )


def test_of_drafters_more_or_less_tried_the_known_one_is_spoken_of() -> None:
    few, many = Share(1.0, 7), Share(0.6, 25)
    assert "look-ups are right 60%" in told(Q8_0, {"model": few, "lookup": many}, lookup=0.0, model=0.0)
    both = {"model": Share(1.0, 3), "lookup": Share(0.0, 7)}
    assert "where look-ups are right more" in told(Q8_0, both, lookup=0.0, model=0.0), "none is; this one nearly"


def test_prices_of_a_busy_machine_are_not_explained() -> None:
    prices = Prices(Q8_0)
    prices.trusted = False
    acceptance = {"lookup": Share(0.8, 50)}
    runtime = SimpleNamespace(prices=prices, acceptance=acceptance, step_prices={"lookup": 0.0})
    assert explained(cast(Runtime, runtime)) == says((1.0, 0.1, 50.0, 0.1), {"lookup": 0.8}, lookup=0.0)
