"""How a tree of tokens lies in one pass: every node's depth, and the leaves below it.

Leaves are numbered depth-first, so that those below a node are neighbours: a range says them all.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ..errors import EngineError, RollbackError


def is_chain(parents: Sequence[int]) -> bool:
    """Whether each node follows the one before, the first the cache."""
    return all(parent == node - 1 for node, parent in enumerate(parents))


def kept_length(held: int, start: int, length: int, keep: Sequence[int]) -> int:
    """What is left of `held` tokens where a rollback asks for the first `length` and, of a chain decoded after `start`,
    the nodes `keep`: a chain keeps its first nodes, and that is only a later place to cut.

    Raises:
        RollbackError: there are no such tokens.
    """
    if not 0 <= length <= held:
        raise RollbackError(f"cannot go back to {length} tokens: {held} are held")
    if not keep:
        return length
    if length != start or list(keep) != list(range(len(keep))) or length + len(keep) > held:
        raise RollbackError(f"cannot keep nodes {list(keep)} after {length} tokens: not a prefix of the last decode")
    return length + len(keep)


class Branches:
    """A tree, or several, over the cache.

    Args:
        parents: of each node, -1 for the cache; parents come before children, in any order otherwise.

    Raises:
        EngineError: a parent that does not come before its child.
    """

    def __init__(self, parents: Sequence[int]) -> None:
        for node, parent in enumerate(parents):
            if not -1 <= parent < node:
                raise EngineError(
                    f"node {node} of a tree has the parent {parent}; parents come before children, -1 is the cache"
                )
        self.parents = tuple(parents)
        #: Ancestors of each node.
        self.depths: list[int] = []
        for parent in parents:
            self.depths.append(self.depths[parent] + 1 if parent >= 0 else 0)
        #: The numbers of the leaves below each node, a leaf's own among them.
        self.below = self._number()

    def __len__(self) -> int:
        return len(self.parents)

    @property
    def leaves(self) -> int:
        return sum(below.stop - below.start for below, depth in zip(self.below, self.depths, strict=True) if not depth)

    def _number(self) -> list[range]:
        counts = [0] * len(self)
        for node in reversed(range(len(self))):
            counts[node] = counts[node] or 1
            if (parent := self.parents[node]) >= 0:
                counts[parent] += counts[node]
        free = [0] * (len(self) + 1)  # the next number below each node; the last place is the cache's, index -1
        below = []
        for node, parent in enumerate(self.parents):
            first = free[parent]
            free[node], free[parent] = first, first + counts[node]
            below.append(range(first, first + counts[node]))
        return below

    def is_path(self, nodes: Sequence[int]) -> bool:
        """Whether `nodes` go from the cache down, each the child of the one before."""
        above = -1
        for node in nodes:
            if not 0 <= node < len(self) or self.parents[node] != above:
                return False
            above = node
        return True

    def check_kept(self, start: int, length: int, keep: Sequence[int]) -> None:
        """That a rollback to `length` may keep the nodes `keep` of this tree, decoded after `start` tokens.

        Raises:
            RollbackError: they are no path, or begin elsewhere.
        """
        if not 0 <= length <= start or (keep and not (length == start and self.is_path(keep))):
            raise RollbackError(
                f"cannot keep nodes {list(keep)} after {length} tokens: not a path from the root of the tree decoded "
                f"after {start}"
            )

    def ancestry(self) -> npt.NDArray[np.bool_]:
        """Of each node (row), which nodes lie on the path down to it, itself among them."""
        on_path = np.eye(len(self), dtype=np.bool_)
        for node, parent in enumerate(self.parents):
            if parent >= 0:
                on_path[node] |= on_path[parent]
        return on_path

    def shared(self, path: Sequence[int]) -> list[int]:
        """Of each leaf, how many nodes of `path` lie above it (or are it): they are the first so many."""
        counts = [0] * self.leaves
        for node in path:
            for leaf in self.below[node]:
                counts[leaf] += 1
        return counts
