"""Rejection sampling: x drawn from q is accepted with probability min(1, p(x) / q(x)), else p becomes max(p - q, 0).

Leviathan et al. 2023, Chen et al. 2023. The siblings of a tree are tested in order against the residual distribution,
the multi-round rejection of SpecInfer (Miao et al. 2024, arXiv 2305.09781): lossless for the guesses of any drafters,
if each token was drawn from its q given those before it in that order. A second draw of the same drafter without
replacement has the q without the first token, normalised.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..sampling import RESIDUAL, Sampling, distribution, drafting, draw, happens, round_seed
from ..types import Acceptance, Distribution, Draft, Floats, Guess, Rows
from .match import Match
from .rest import chance, drawn_from, rest


class Rejection:
    """Accepts or rejects each token by itself, once all its ancestors were accepted."""

    name = "rejection"
    trims = False

    def draw(
        self, row: Floats, sampling: Sampling, context: Sequence[int], drafted: Sequence[int], stream: int = 0
    ) -> Guess:
        if sampling.greedy:
            return Match().draw(row, sampling, context, drafted)
        q = distribution(row, sampling, sampling.recent(context, drafted))
        seed = round_seed(sampling.seed, len(context))
        return Guess(draw(q, seed, len(context) + len(drafted), drafting(stream)), float(q.probs.max()), q)

    def accept(self, draft: Draft, rows: Rows, sampling: Sampling, context: Sequence[int]) -> Acceptance:
        seed = round_seed(sampling.seed, len(context))
        path: list[int] = []
        recent = sampling.recent(context)
        node = -1
        while True:
            position = len(context) + len(path)
            p = distribution(rows[node + 1], sampling, recent)
            found, p = _try_children(draft, node, p, seed, position)
            if found is None:
                return Acceptance(tuple(path), draw(p, seed, position, RESIDUAL))
            path.append(found)
            node = found
            recent = sampling.recent((*recent, draft.tokens[found]))


def _try_children(
    draft: Draft, node: int, p: Distribution, seed: int, position: int
) -> tuple[int | None, Distribution]:
    """The accepted child, or None and the residual distribution of the correction."""
    for child in draft.children(node):
        q = drawn_from(draft, child)
        # Siblings may have the same token, so the random number belongs to the node.
        if happens(chance(draft.tokens[child], p, q), seed, position, child):
            return child, p
        p = rest(p, q).distribution
    return None, p
