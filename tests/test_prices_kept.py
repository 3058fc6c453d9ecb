"""Prices kept from run to run, on a machine whose pace varies."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np
import pytest

from edgespec.backends.toy import ToySession, ngram_rule
from edgespec.prices import WIDTHS, Prices, keep, recall

#: llama.cpp's Q4_0 of a target of one billion parameters, measured: t(n)/t(1) for n = 1..16.
Q4_0 = (1.0, 1.5, 2.0, 1.4, 1.8, 2.3, 2.4, 2.5, 2.8, 3.3, 3.9, 3.4, 4.1, 4.5, 5.0, 4.4)


def kept(seconds: Sequence[float]) -> ToySession:
    session = ToySession(ngram_rule(5), 64)
    keep(session, Prices(seconds))
    return session


def recalled(session: ToySession) -> Prices:
    prices = recall(session)
    assert prices is not None
    return prices


class Machine:
    """Passes at a pace that changes now and then, by a lognormal factor. They vary by 5%; some are hiccups."""

    def __init__(self, seed: int, spread: float) -> None:
        self._random = np.random.default_rng(seed)
        self._spread = spread
        self._change()

    def _change(self) -> None:
        self._pace = float(self._random.lognormal(0, self._spread))

    def seconds(self, width: int) -> float:
        hiccup = float(self._random.uniform(1.5, 4)) if self._random.random() < 0.02 else 1.0
        return Q4_0[width - 1] * self._pace * float(self._random.lognormal(0, 0.05)) * hiccup

    def run(self, session: ToySession, widths: Iterable[int]) -> None:
        """A run of the product: plain steps timed at load, rounds, and prices kept."""
        prices = recalled(session)
        prices.rescale(min(self.seconds(1), self.seconds(1)) / prices.plain(0))
        for width in widths:
            if self._random.random() < 0.03:
                self._change()
            prices.observe(width, 60, self.seconds(width))
        keep(session, prices)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("spread", [0.05, 0.15])
def test_prices_do_not_fall_from_run_to_run(own_cache: object, spread: float, seed: int) -> None:
    session, machine = kept(Q4_0), Machine(seed, spread)
    drawn = np.random.default_rng(seed)
    for _ in range(20):
        widths = drawn.choice([1, 2, 4, 9, 16], 80, p=[0.7, 0.15, 0.1, 0.03, 0.02])
        machine.run(session, map(int, widths))
    curve = recalled(session).curve(64)
    errors = [price / true for price, true in zip(curve, Q4_0, strict=True)]
    assert all(0.7 < error < 1.4 for error in errors), errors
    unseen = set(range(1, WIDTHS + 1)) - {2, 4, 9, 16}
    assert {errors[n - 1] for n in unseen} == {1.0}, "no pass spoke of them"


def test_what_passes_taught_is_kept_beside_the_plain_step_that_was_measured(own_cache: object) -> None:
    """The machine is twice as fast as measured, and passes over 4 tokens are cheaper beside a plain step, too."""
    session = kept([1.0, *(1.3 * seconds for seconds in Q4_0[1:])])
    prices = recalled(session)
    for _ in range(3):
        for width in (1, 1, 1, 4, 4, 4):
            prices.observe(width, 60, 0.5 * Q4_0[width - 1])
    assert prices.price(4, 60) == pytest.approx(0.5 * Q4_0[3])
    keep(session, prices)
    curve = recalled(session).curve(60)
    assert curve[0] == 1.0
    assert curve[3] == pytest.approx(math.sqrt(1.3) * Q4_0[3]), "half the way, in each run"
    assert curve[7] == 1.3 * Q4_0[7], "it was not seen"


def test_what_few_passes_say_holds_for_this_run_alone(own_cache: object) -> None:
    """One cheap pass corrects all widths not yet seen, by a guess."""
    session = kept([1.0, *(2 * seconds for seconds in Q4_0[1:])])
    prices = recalled(session)
    prices.observe(4, 60, Q4_0[3])
    assert list(prices.curve(60)) == pytest.approx(Q4_0)
    keep(session, prices)
    assert recalled(session).curve(60)[3] == 2 * Q4_0[3]
