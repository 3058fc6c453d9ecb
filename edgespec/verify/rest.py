"""What rejection and block share: the distribution of a drafted token, and the residual of p after its rejection."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..types import Distribution, Draft


class Rest(NamedTuple):
    """A normalised residual distribution, and its mass before normalisation."""

    distribution: Distribution
    mass: float


def rest(p: Distribution, q: Distribution, weight: float = 1.0) -> Rest:
    """max(weight * p - q, 0), normalised.

    The supports of p and q may differ, because each was filtered by itself. If the mass is 0, the result is p: then
    the token was rejected by a rounding error only, and any token of p is correct.
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
    """The distribution that the token of `node` was drawn from; without q, the point mass on it."""
    if draft.q is not None:
        return draft.q[node]
    return Distribution.point(draft.tokens[node])


def chance(token: int, p: Distribution, q: Distribution, kept: float = 1.0) -> float:
    """min(kept * p / q, 1) of `token`, the probability that it is accepted; `kept` is that of its ancestors."""
    target, drafted = kept * p.of(token), q.of(token)
    return target / drafted if target < drafted else float(target > 0)
