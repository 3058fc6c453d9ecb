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

    The supports may differ: filters cut p and q each by its own tail. With a mass of 0 it is p itself: then only a
    rounding error refused the token, and anything that p may say will do.
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
    return Distribution.point(draft.tokens[node])


def chance(token: int, p: Distribution, q: Distribution, kept: float = 1.0) -> float:
    """min(kept * p / q, 1) of `token`: the chance to keep it where what is above it is kept with `kept`."""
    wanted, had = kept * p.of(token), q.of(token)
    return wanted / had if wanted < had else float(wanted > 0)
