"""The sequences of a llama.cpp KV cache: 0 is the committed text, the others hold the branches of trees.

A token attends to the cells of its own sequence, so each branch needs the whole text in its sequence. A cell can belong
to any number of sequences and is never copied, but adding it to a sequence takes about 35 ns and some memory. So a
sequence keeps the text between trees, and only new tokens are added: the time per round does not grow with the text,
except for a few scans of the cells.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .tree_layout import Branches


class LlamaCache:
    """The cells of a llama_context by sequence.

    Args:
        leaves: number of sequences, with that of the text; 0 for a cache without trees.
    """

    aborts = True

    def __init__(self, low: Any, context: Any, leaves: int) -> None:
        self._low = low
        self._memory = low.llama_get_memory(context)
        self._any = -1 if leaves else 0
        self._length = 0  # tokens of the text
        # Tokens of the text's prefix that each sequence holds; between trees it holds nothing else.
        self._given = [0] * leaves

    def give(self, length: int, leaves: int) -> None:
        """Add the text of `length` tokens to the first `leaves` sequences."""
        for sequence in range(1, leaves):
            if (given := self._given[sequence]) < length:
                self._low.llama_memory_seq_cp(self._memory, 0, sequence, given, -1)
                self._given[sequence] = length

    def mark(self) -> None:
        """Cells can be removed from any position on: there is nothing to prepare."""

    def cut(self, length: int) -> int:
        """Remove all cells from position `length` on from all sequences; returns how many tokens are left, 0 if the
        cache cannot."""
        if not self._low.llama_memory_seq_rm(self._memory, self._any, length, -1):
            self._low.llama_memory_clear(self._memory, False)
            length = 0
        self._length = min(self._length, length)
        self._given = [min(given, length) for given in self._given]
        return self._length

    def begin(self, length: int) -> int:
        """Before a pass after `length` tokens; returns how many of them there are."""
        return min(length, self._length)

    def passed(self, length: int, width: int) -> None:  # noqa: ARG002 - only a recurrent state needs it
        """A pass of `width` tokens ended at `length` tokens."""
        self._length = length

    def failed(self, length: int) -> int:
        """A pass after `length` tokens failed or was aborted; returns how many of them are left."""
        return self.cut(length)

    def saves(self, length: int) -> bool:  # noqa: ARG002 - there is no state to save
        """Whether to save the state after `length` tokens of a prompt."""
        return False

    def save(self, length: int) -> None:
        """Save the present state, of `length` tokens."""

    def keep(self, branches: Branches, path: Sequence[int], start: int) -> None:
        """Keep `path` of the tree that was just decoded after `start` tokens; remove its other nodes."""
        self.cut(start + len(path))
        shared = branches.shared(path)
        for sequence, count in enumerate(shared):
            if count < len(path):
                self._low.llama_memory_seq_rm(self._memory, sequence, start + count, -1)
            self._given[sequence] = start + count
        self._length = start + len(path)
        if shared[0] < len(path):
            winner = branches.below[path[-1]].start
            self._low.llama_memory_seq_cp(self._memory, winner, 0, start + shared[0], -1)
