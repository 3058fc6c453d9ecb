"""What rejection and block share: what a token was drawn from, and what of p is left once it was refused."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..types import Distribution, Draft


class Rest(NamedTuple):
    """A distribution, and how much of the whole it was before it was normalised."""

    distribution: Distribution
    mass: float


def rest(p: Distribution, q: Distribution, weight: float = 1.0) -> Rest:
    """max(weight * p - q, 0), normalised.

    The supports may differ: filters cut p and q each by its own tail. A mass of 0 comes with p itself: then the token
    was accepted for certain, or is a rounding error from it, and anything right will do.
    """
    taken = np.zeros(1 + max(int(p.tokens.max()), int(q.tokens.max())))
    taken[q.tokens] = q.probs
    left = np.maximum(weight * p.probs - taken[p.tokens], 0.0)
    mass = float(left.sum())
    if mass == 0:
        return Rest(p, 0.0)
    keep = left > 0
    return Rest(Distribution(p.tokens[keep], left[keep] / mass), mass)


def drawn_from(draft: Draft, node: int) -> Distribution:
    """What `node`'s token was drawn from. Without q the drafter had no choice: all of it is on that token."""
    if draft.q is not None:
        return draft.q[node]
    return Distribution(np.array([draft.tokens[node]], dtype=np.int64), np.ones(1))


def ratio(part: float, whole: float) -> float:
    """part / whole, at most 1; 1 too where both are 0."""
    return part / whole if part < whole else 1.0
