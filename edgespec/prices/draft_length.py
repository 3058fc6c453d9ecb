"""The best draft length by prices and acceptance rate.

The model is that of Leviathan et al. 2023: if each drafted token is accepted with probability a, independently of those
before it, a round with K drafted tokens commits (1 - a^(K+1)) / (1 - a) tokens on average. It takes a pass over 1 + K
tokens and K steps of the drafter.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Sequence
from typing import NamedTuple

TYPICAL = 0.7  #: the acceptance rate at which numbers of threads and engines are compared

#: The probability that a drafted token is accepted if all before it were: one for all depths, or one per depth, of
#: which the last holds for all greater depths.
Chances = float | Sequence[float]


def committed(acceptance: Chances, k: int) -> float:
    """The mean number of tokens that a round with `k` drafted tokens commits."""
    each = acceptance if isinstance(acceptance, Sequence) else (acceptance,)
    chances = (each[min(depth, len(each) - 1)] for depth in range(k))
    return sum(itertools.accumulate(chances, operator.mul, initial=1.0))


def speedup(curve: Sequence[float], step: float, acceptance: Chances, k: int) -> float:
    """The speedup over plain decoding of rounds with `k` drafted tokens.

    Args:
        curve: seconds of a pass over 1, 2, ... tokens.
        step: seconds per token of the drafter; 0 for a look-up.
    """
    # A wide pass that was measured cheaper than a plain one is noise, and must not count as a gain.
    return committed(acceptance, k) * curve[0] / (max(curve[0], curve[k]) + k * step)


class Best(NamedTuple):
    """The best draft length, 0 if no draft has a speedup above 1, and its speedup."""

    k: int
    speedup: float


def best(curve: Sequence[float], step: float, acceptance: Chances) -> Best:
    """The best draft length by `curve`; of equal ones the shortest."""
    k = max(range(len(curve)), key=lambda k: (speedup(curve, step, acceptance, k), -k))
    return Best(k, speedup(curve, step, acceptance, k))


def ceiling(curve: Sequence[float], step: float) -> Best:
    """The speedup if every drafted token is accepted, the limit for drafters with this step price."""
    return best(curve, step, 1.0)


def break_even(curve: Sequence[float], step: float) -> float | None:
    """The least acceptance rate, in steps of 0.01, at which a draft has a speedup above 1; None if none has."""
    return next((percent / 100 for percent in range(101) if best(curve, step, percent / 100).k), None)
