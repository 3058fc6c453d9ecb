"""Acceptance by equality: a drafted token is accepted if it is the one that the target samples.

Target and drafters sample with shared noise (Daliri et al. 2024); at temperature 0 this is greedy verification. The
text depends on the seed and the target alone.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..sampling import SHARED, Sampling, distribution, draw, pick
from ..types import Acceptance, Draft, Floats, Guess, Rows

# Measured on a core of a Xeon with 128,256 tokens: 0.13 ms for the sum of all, 0.02 folded, and 0.30 and 0.07 with rows
# that are in no cache, as a GPU delivers them. 8 folds take 0.03, 64 and 128 as long as 32 and say less.
_LARGE, _FOLDS = 1 << 15, 32


class Match:
    """Accepts the tokens that the target samples itself: the text is that of plain decoding with the same seed."""

    name = "match"
    trims = True

    def draw(
        self,
        row: Floats,
        sampling: Sampling,
        context: Sequence[int],
        drafted: Sequence[int],
        stream: int = 0,  # noqa: ARG002 - all drafters share the target's noise
    ) -> Guess:
        recent = sampling.recent(context, drafted)
        position = len(context) + len(drafted)
        if sampling.greedy:
            return Guess(pick(row, sampling, position, recent), _top(row), None)
        q = distribution(row, sampling, recent)
        return Guess(draw(q, sampling.seed, position, SHARED), float(q.probs.max()), None)

    def accept(self, draft: Draft, rows: Rows, sampling: Sampling, context: Sequence[int]) -> Acceptance:
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
    """The softmax probability of the likeliest token, or a little more: see `_folded`."""
    likely = _folded(row) if len(row) > _LARGE else row
    return float(1.0 / np.exp(likely - likely.max()).sum())


def _folded(row: Floats) -> Floats:
    """Of every `_FOLDS` logits, at equal distances, the highest: a sum of exponentials over a large vocabulary takes as
    long as a small draft model's pass on a GPU, and few of its terms matter. At most the last `_FOLDS` - 1 are kept as
    they are."""
    whole = len(row) // _FOLDS * _FOLDS
    return np.concatenate([row[:whole].reshape(_FOLDS, -1).max(0), row[whole:]])
