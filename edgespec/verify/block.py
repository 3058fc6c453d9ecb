"""Block verification: the tokens of a draft are accepted jointly (Sun et al. 2024, "Block Verification Accelerates
Speculative Decoding").

At least the tokens x_1..x_i of a chain are accepted with probability

    k_i = min(k_{i-1} p(x_i) / q(x_i), 1),    k_0 = 1.

Token-wise rejection accepts them with the product of all min(p / q, 1), which is never more: here a token with p > q
compensates for an earlier one with p < q. No rule that is lossless in each round accepts more tokens of a chain on
average.

Nodes are tested from the leaf, which passes with probability k_n, towards the root. At a node with acceptance
probability k, the next token is accepted with probability min(k p, q) summed over all tokens, which is k - s, where s
is the mass of r = max(k p - q, 0). It is rejected with probability 1 - k + s; the node then passes with probability
s / (1 - k + s), and the token after it is drawn from r, normalised. At the root k is 1, and so is this probability, so
the traversal ends.

For a chain this is the rule of Sun et al., in the order that needs least computation. In a tree, the residual of a
rejected child applies to its next sibling before the node itself is tested: Weng et al. 2025, "Traversal Verification
for Speculative Tree Decoding".
"""

from __future__ import annotations

from collections.abc import Sequence

from ..sampling import RESIDUAL, Sampling, distribution, draw, happens, round_seed
from ..types import Acceptance, Distribution, Draft, Rows
from .rejection import Rejection
from .rest import chance, drawn_from, rest


class Block(Rejection):
    """Drafts are drawn as for `rejection` and accepted or rejected jointly.

    In a tree, q must be the distribution of a token given its earlier siblings and all their descendants, which were
    rejected before it is tested; for `rejection`, given its earlier siblings.
    """

    name = "block"

    def accept(self, draft: Draft, rows: Rows, sampling: Sampling, context: Sequence[int]) -> Acceptance:
        walk = _Walk(draft, rows, sampling, context)
        walk.ends_below(-1, 1.0, ())
        position = len(context) + len(walk.path)
        return Acceptance(walk.path, draw(walk.p, walk.seed, position, RESIDUAL))


class _Walk:
    """The traversal of one draft. It ends at the last node of `path`; the token after that is drawn from `p`."""

    path: tuple[int, ...]
    p: Distribution

    def __init__(self, draft: Draft, rows: Rows, sampling: Sampling, context: Sequence[int]) -> None:
        self.seed = round_seed(sampling.seed, len(context))
        self._draft = draft
        self._rows = rows
        self._sampling = sampling
        self._context = context

    def ends_below(self, node: int, kept: float, path: tuple[int, ...]) -> bool:
        """Whether the traversal ends at `node`, the last of `path`, or below it, which has the probability `kept`."""
        children = tuple(self._draft.children(node))
        if not children and not self._passes(node, kept, path):
            return False
        p = self._target(node, path)
        for child in children:
            q = drawn_from(self._draft, child)
            with_child = chance(self._draft.tokens[child], p, q, kept)
            if with_child > 0 and self.ends_below(child, with_child, (*path, child)):
                return True
            p, owed = rest(p, q, kept)
            kept = owed / (1 - kept + owed) if kept < 1 else 1.0
        if children and not self._passes(node, kept, path):
            return False
        self.path, self.p = path, p
        return True

    def _passes(self, node: int, kept: float, path: tuple[int, ...]) -> bool:
        return happens(kept, self.seed, len(self._context) + len(path), node)

    def _target(self, node: int, path: tuple[int, ...]) -> Distribution:
        recent = self._sampling.recent(self._context, [self._draft.tokens[above] for above in path])
        return distribution(self._rows[node + 1], self._sampling, recent)
