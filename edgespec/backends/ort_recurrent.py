"""What the short convolutions of a model see of the last tokens of one sequence.

A convolution over `kernel` tokens sees the `kernel` - 1 before a pass. The graph takes rows of these, and gives those
of the pass's own tokens. Rows of many tokens are kept, one after the other, so the next pass can follow any of them: a
rollback copies nothing, and no token is computed again. Only a rollback beyond the first row that is kept needs saved
rows, of the end of a prompt for example, or the beginning of the text.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from .onnx_file import Described, Recurrence
from .ort_package import bindings

_Arrays = list[npt.NDArray[Any]]

_KEPT = 64  # tokens that a rollback can always drop
_BYTES = 64 << 20  # of all rows, as far as that allows the narrowest pass
_NARROWEST = 64
_SAVED = 2  # ends of prompts


@dataclass(frozen=True, slots=True)
class _Saved:
    """The rows before a pass after `length` tokens, by layer."""

    length: int
    rows: _Arrays


def widest(model: Described, most: int) -> int:
    """The most tokens of a pass whose rows do not take too much memory, at most `most`."""
    if model.recurrence is None:
        return most
    return max(_NARROWEST, min(most, _BYTES // _row_bytes(model, model.recurrence) - _KEPT))


def state_bytes(model: Described, most: int) -> int:
    """Bytes of the rows of a session whose passes have at most `most` tokens."""
    if (recurrence := model.recurrence) is None:
        return 0
    rows = _KEPT + widest(model, most) + (2 + _SAVED) * (recurrence.kernel - 1)
    return rows * _row_bytes(model, recurrence)


def _row_bytes(model: Described, recurrence: Recurrence) -> int:
    return len(recurrence.layers) * recurrence.channels * model.number_bytes


class RecurrentRows:
    """The rows of the last tokens, by layer.

    Row i of a buffer is that of token `_first` - (kernel - 1) + i; rows before the first token are zeros.

    Args:
        most: the most tokens of a pass.
    """

    def __init__(self, recurrence: Recurrence, dtype: npt.DTypeLike, most: int) -> None:
        self._layers, self._before = recurrence.layers, recurrence.kernel - 1
        self._capacity = _KEPT + most
        shape = (self._before + self._capacity, recurrence.channels)
        self._rows: _Arrays = [np.zeros(shape, dtype) for _ in self._layers]
        self._first = self._end = 0  # the next pass can follow any length from the first to the second
        self._marked = 0
        self._mark: _Saved | None = None  # if its rows are no longer in the buffers
        self._saved: list[_Saved] = []

    def cut(self, length: int) -> int:
        """The text has only `length` tokens; returns after how many of them the next pass can follow."""
        self._saved = [each for each in self._saved if each.length <= length]
        if self._marked > length:
            self._marked, self._mark = 0, None
        if length >= self._first:
            self._end = min(self._end, length)
            return self._end
        known = [*self._saved, *([self._mark] if self._mark else [])]
        self._load(max(known, key=lambda each: each.length, default=None))
        return self._end

    def mark(self, length: int) -> None:
        """The first `length` tokens stay for now."""
        if self._first <= length <= self._end:
            self._marked, self._mark = length, None

    def save(self, length: int) -> None:
        """Save the rows of the last pass's end, after `length` tokens."""
        self._saved = [*self._saved, self._copy(length)][-_SAVED:]

    def bind(self, binding: Any, start: int, n: int) -> None:
        """Bind the buffers for a pass of `n` tokens after `start` tokens."""
        if start - self._first + n > self._capacity:
            self._move(max(self._first, start - _KEPT))
        at = start - self._first
        value = bindings().OrtValue.ortvalue_from_numpy
        for layer, rows in zip(self._layers, self._rows, strict=True):
            before, own = rows[at : at + self._before], rows[at + self._before :][:n]
            binding.bind_ortvalue_input(f"past.{layer}.rows", value(before[None]))
            binding.bind_ortvalue_output(f"present.{layer}.rows", value(own[None]))

    def passed(self, length: int) -> None:
        """The pass that was bound last ended; the text has `length` tokens."""
        self._end = length

    def _move(self, first: int) -> None:
        """Drop the rows of tokens before `first`, but for those that a pass after it needs."""
        if self._first <= self._marked < first:
            self._mark = self._copy(self._marked)
        start, end = first - self._first, self._end - self._first + self._before
        for rows in self._rows:
            rows[: end - start] = rows[start:end].copy()
        self._first = first

    def _copy(self, length: int) -> _Saved:
        at = length - self._first
        return _Saved(length, [rows[at : at + self._before].copy() for rows in self._rows])

    def _load(self, saved: _Saved | None) -> None:
        """Go back to saved rows, or to the beginning of the text."""
        self._first = self._end = saved.length if saved else 0
        for i, rows in enumerate(self._rows):
            rows[: self._before] = saved.rows[i] if saved else 0
