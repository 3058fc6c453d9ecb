"""A llama.cpp KV cache whose layers with a sliding window do not hold the whole text.

llama.cpp overwrites cells that no later token attends to. After a rollback beyond them, it computes wrong logits
without an error. So before cells are removed, the first position left is compared with the first one that the next
token needs. If that is gone, the cells saved near the end of a prompt are loaded, else the text is computed again from
its beginning.
"""

from __future__ import annotations

from typing import Any

from .llama_cache import LlamaCache
from .llama_saved import SavedStates


class Windowed(LlamaCache):
    """The cells of a llama_context with a single sequence.

    Args:
        window: tokens that a layer with a window attends to, the present one included.
        cells: those of such a layer.
    """

    def __init__(self, low: Any, context: Any, window: int, cells: int) -> None:
        super().__init__(low, context, 0)
        self._window, self._cells = window, cells
        self._saved = SavedStates(low, context, 1)

    def cut(self, length: int) -> int:
        length = min(length, self._length)
        self._saved.drop(length)
        if not self._reaches(length):
            at = max(self._saved.lengths, default=0)
            length = at if self._saved.load(at) else 0
        return super().cut(length)

    def saves(self, length: int) -> bool:
        """Whether to save the cells after `length` tokens: not while no cell is overwritten, nor if what was saved last
        is so near that one pass computes the tokens from there on."""
        return length > self._cells and length - max(self._saved.lengths, default=0) >= self._cells - self._window

    def save(self, length: int) -> None:
        self._saved.save(length)

    def _reaches(self, length: int) -> bool:
        """Whether all cells are there that a token after `length` others attends to."""
        first = int(self._low.llama_memory_seq_pos_min(self._memory, 0))
        return not length or 0 <= first <= max(0, length - self._window + 1)
