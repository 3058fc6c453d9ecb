"""What llama.cpp cannot go back to by removing cells, saved in the memory of the CPU.

That is a recurrent state, or the cells of layers with a sliding window: what PARTIAL_ONLY selects. Cells of layers that
attend to the whole text are not saved; removing those after a length is enough.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

_PARTIAL = 1  # LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY
_TEXT = 0  # the sequence


class SavedStates:
    """States of sequence 0 of a llama_context after some lengths of its text.

    Args:
        most: how many are kept; the oldest makes room.
    """

    def __init__(self, low: Any, context: Any, most: int) -> None:
        self._low, self._context, self._most = low, context, most
        self._saved: list[_Saved] = []

    @property
    def lengths(self) -> tuple[int, ...]:
        """The lengths of which there is a state."""
        return tuple(each.length for each in self._saved)

    def save(self, length: int) -> None:
        """Save the present state, of `length` tokens."""
        size = int(self._low.llama_state_seq_get_size_ext(self._context, _TEXT, _PARTIAL))
        full = len(self._saved) >= self._most
        # A new buffer would take ten times as long to fill, for its pages come with the first touch.
        buffer = self._saved.pop(0).buffer if full else ctypes.create_string_buffer(size)
        if ctypes.sizeof(buffer) < size:
            buffer = ctypes.create_string_buffer(size)
        pointer = ctypes.cast(buffer, ctypes.POINTER(ctypes.c_uint8))
        if self._low.llama_state_seq_get_data_ext(self._context, pointer, size, _TEXT, _PARTIAL) == size:
            self._saved.append(_Saved(length, size, buffer))

    def load(self, length: int) -> bool:
        """Make the present state the one saved at `length`; False if there is none, or llama.cpp cannot. Cells of the
        whole text beyond `length` remain to be removed."""
        saved = next((each for each in self._saved if each.length == length), None)
        if saved is None:
            return False
        pointer = ctypes.cast(saved.buffer, ctypes.POINTER(ctypes.c_uint8))
        read = self._low.llama_state_seq_set_data_ext(self._context, pointer, saved.size, _TEXT, _PARTIAL)
        return bool(read == saved.size)

    def forget(self, length: int) -> None:
        """Forget the state after `length` tokens."""
        self._saved = [each for each in self._saved if each.length != length]

    def drop(self, length: int) -> None:
        """Forget the states after more than `length` tokens: the text changes there."""
        self._saved = [each for each in self._saved if each.length <= length]


@dataclass(frozen=True, slots=True)
class _Saved:
    """The state after `length` tokens, in the first `size` bytes of `buffer`."""

    length: int
    size: int
    buffer: Any
