"""Accept the draft's tokens jointly: Sun et al. 2024, "Block Verification Accelerates Speculative Decoding".

The draft's text x_1..x_i is kept, or more than it, with probability

    k_i = min(k_{i-1} p(x_i) / q(x_i), 1),    k_0 = 1.

Rejection keeps it with the product of all min(p / q, 1), which is never more: here a token that the target likes better
than the drafter does makes up for one above it that it likes less. No rule that is lossless round by round keeps more
of a chain on the average.

The tests go from the leaf, which passes with k_n, towards the root. At a node kept with k, the next token is kept with
min(k p, q) summed over all tokens, which is k - s, where s is the mass of r = max(k p - q, 0). So it is refused with
1 - k + s, and s is still owed: the node then passes with s / (1 - k + s), and what follows it comes from r, normalised.
At the root k is 1, and so is that: the walk always ends.

For a chain this is Sun et al.'s rule, in the order that computes least. In a tree, what a refused child has left is
offered to its next sibling before the node itself is tested: Weng et al. 2025, "Traversal Verification for Speculative
Tree Decoding".
"""

from __future__ import annotations

from collections.abc import Sequence

from ..sampling import RESIDUAL, Sampling, distribution, draw, happens, round_seed
from ..types import Acceptance, Distribution, Draft, Floats
from .rejection import Rejection
from .rest import chance, drawn_from, rest


class Block(Rejection):
    """The draft is drawn as for rejection, and judged as a whole.

    In a tree, q must be what a token was drawn from given its elder siblings and all below them, which were refused
    when it is tested; for rejection, given its elder siblings.
    """

    name = "block"

    def accept(self, draft: Draft, rows: Floats, sampling: Sampling, context: Sequence[int]) -> Acceptance:
        walk = _Walk(draft, rows, sampling, context)
        walk.ends_below(-1, 1.0, ())
        position = len(context) + len(walk.path)
        return Acceptance(walk.path, draw(walk.p, walk.seed, position, RESIDUAL))


class _Walk:
    """The walk over one draft. It ends at the node that `path` leads to; `p` is what the token there comes from."""

    path: tuple[int, ...]
    p: Distribution

    def __init__(self, draft: Draft, rows: Floats, sampling: Sampling, context: Sequence[int]) -> None:
        self.seed = round_seed(sampling.seed, len(context))
        self._draft = draft
        self._rows = rows
        self._sampling = sampling
        self._context = context

    def ends_below(self, node: int, kept: float, path: tuple[int, ...]) -> bool:
        """Whether the walk ends at `node`, which `path` leads to, or below it, if it is to with probability `kept`."""
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
