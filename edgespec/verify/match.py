"""Keep the draft for as long as it says what the target says.

The target picks by the noise that it shares with the drafters, acceptance is equality: Daliri et al. 2024; at
temperature 0 this is plain greedy verification. The text then depends on the seed alone.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..sampling import SHARED, Sampling, distribution, draw, pick
from ..types import Acceptance, Draft, Floats, Guess


class Match:
    """Same seed, same text, whatever was drafted."""

    name = "match"
    trims = True

    def draw(self, row: Floats, sampling: Sampling, context: Sequence[int], drafted: Sequence[int]) -> Guess:
        recent = sampling.recent(context, drafted)
        position = len(context) + len(drafted)
        if sampling.greedy:
            return Guess(pick(row, sampling, position, recent), _top(row), None)
        q = distribution(row, sampling, recent)
        return Guess(draw(q, sampling.seed, position, SHARED), float(q.probs.max()), None)

    def accept(self, draft: Draft, rows: Floats, sampling: Sampling, context: Sequence[int]) -> Acceptance:
        path: list[int] = []
        recent = sampling.recent(context)
        node = -1
        while True:
            token = pick(rows[node + 1], sampling, len(context) + len(path), recent)
            found = next((child for child in draft.children(node) if draft.tokens[child] == token), None)
            if found is None:
                return Acceptance(tuple(path), token)
            path.append(found)
            node = found
            recent = sampling.recent((*recent, token))


def _top(row: Floats) -> float:
    """The softmax probability of the likeliest token, without normalising the rest."""
    return float(1.0 / np.exp(row - row.max()).sum())
