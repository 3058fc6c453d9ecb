"""The sequences of a llama.cpp cache: 0 is the text, the others lend themselves to the branches of trees.

A token sees the cells of its own sequence, so each branch needs the whole text in its sequence. Cells belong to any
number of sequences and are never copied, but to add one to a sequence takes some 35 ns and a little memory. So a
sequence keeps the text it was given, from one tree to the next, and is given what is new: a round costs some scans
of the cells, however long the text.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .tree_layout import Branches


class LlamaCache:
    """What a llama_context holds of each sequence.

    Args:
        leaves: sequences, with that of the text; 0 for a cache that takes no trees.
    """

    def __init__(self, low: Any, context: Any, leaves: int) -> None:
        self._low = low
        self._memory = low.llama_get_memory(context)
        self._any = -1 if leaves else 0
        self._given = [0] * leaves  # how many of the text's first tokens a sequence holds; nothing else between trees

    def give(self, length: int, leaves: int) -> None:
        """Let the first `leaves` sequences hold the text, `length` tokens."""
        for sequence in range(1, leaves):
            if (given := self._given[sequence]) < length:
                self._low.llama_memory_seq_cp(self._memory, 0, sequence, given, -1)
                self._given[sequence] = length

    def cut(self, length: int) -> bool:
        """Remove all from position `length` on, from all sequences; False where the cache cannot."""
        if not self._low.llama_memory_seq_rm(self._memory, self._any, length, -1):
            return False
        self._given = [min(given, length) for given in self._given]
        return True

    def keep(self, branches: Branches, path: Sequence[int], start: int) -> None:
        """Of the tree just decoded after `start` tokens, keep `path` as the text's continuation."""
        self.cut(start + len(path))
        shared = branches.shared(path)
        for sequence, count in enumerate(shared):
            if count < len(path):
                self._low.llama_memory_seq_rm(self._memory, sequence, start + count, -1)
            self._given[sequence] = start + count
        if shared[0] < len(path):
            winner = branches.below[path[-1]].start
            self._low.llama_memory_seq_cp(self._memory, winner, 0, start + shared[0], -1)
