"""The layout of a draft tree in one pass: the depth of every node, and the leaves below it.

Leaves are numbered depth-first, so that the leaves below a node are a range.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ..errors import EngineError, RollbackError


def is_chain(parents: Sequence[int]) -> bool:
    """Whether each node is the child of the one before, the first of the cache."""
    return all(parent == node - 1 for node, parent in enumerate(parents))


def kept_length(held: int, start: int, length: int, keep: Sequence[int]) -> int:
    """The tokens that remain of `held` after a rollback to the first `length` tokens and the nodes `keep` of a chain
    that was decoded after `start` tokens. The nodes kept of a chain are its first ones.

    Raises:
        RollbackError: there are no such tokens.
    """
    if not 0 <= length <= held:
        raise RollbackError(f"cannot roll back to {length} tokens: {held} are held")
    if not keep:
        return length
    if length != start or list(keep) != list(range(len(keep))) or length + len(keep) > held:
        raise RollbackError(f"cannot keep nodes {list(keep)} after {length} tokens: not a prefix of the last decode")
    return length + len(keep)


class Branches:
    """One or several trees after the tokens in the cache.

    Args:
        parents: the parent of each node, -1 for the cache; parents come before their children.

    Raises:
        EngineError: a parent does not come before its child.
    """

    def __init__(self, parents: Sequence[int]) -> None:
        for node, parent in enumerate(parents):
            if not -1 <= parent < node:
                raise EngineError(
                    f"node {node} of a tree has the parent {parent}; parents come before children, -1 is the cache"
                )
        self.parents = tuple(parents)
        #: The number of ancestors of each node.
        self.depths: list[int] = []
        for parent in parents:
            self.depths.append(self.depths[parent] + 1 if parent >= 0 else 0)
        #: The range of the leaves below each node; for a leaf, its own number.
        self.below = self._number()

    def __len__(self) -> int:
        return len(self.parents)

    @property
    def leaves(self) -> int:
        """The number of leaves."""
        return sum(below.stop - below.start for below, depth in zip(self.below, self.depths, strict=True) if not depth)

    def _number(self) -> list[range]:
        counts = [0] * len(self)
        for node in reversed(range(len(self))):
            counts[node] = counts[node] or 1
            if (parent := self.parents[node]) >= 0:
                counts[parent] += counts[node]
        free = [0] * (
            len(self) + 1
        )  # the next leaf number below each node; the last element, index -1, is for the cache
        below = []
        for node, parent in enumerate(self.parents):
            first = free[parent]
            free[node], free[parent] = first, first + counts[node]
            below.append(range(first, first + counts[node]))
        return below

    def is_path(self, nodes: Sequence[int]) -> bool:
        """Whether `nodes` are a path from a root, each the child of the one before."""
        above = -1
        for node in nodes:
            if not 0 <= node < len(self) or self.parents[node] != above:
                return False
            above = node
        return True

    def check_kept(self, start: int, length: int, keep: Sequence[int]) -> None:
        """Check a rollback to `length` tokens that keeps the nodes `keep` of this tree, decoded after `start` tokens.

        Raises:
            RollbackError: `keep` is not a path, or `length` is not `start`.
        """
        if not 0 <= length <= start or (keep and not (length == start and self.is_path(keep))):
            raise RollbackError(
                f"cannot keep nodes {list(keep)} after {length} tokens: not a path from the root of the tree decoded "
                f"after {start}"
            )

    def ancestry(self) -> npt.NDArray[np.bool_]:
        """bool [n, n]: for each node (row), the nodes on the path from its root, itself included."""
        on_path = np.eye(len(self), dtype=np.bool_)
        for node, parent in enumerate(self.parents):
            if parent >= 0:
                on_path[node] |= on_path[parent]
        return on_path

    def shared(self, path: Sequence[int]) -> list[int]:
        """For each leaf, the number of nodes of `path` that are its ancestors or itself; these are the first ones."""
        counts = [0] * self.leaves
        for node in path:
            for leaf in self.below[node]:
                counts[leaf] += 1
        return counts
