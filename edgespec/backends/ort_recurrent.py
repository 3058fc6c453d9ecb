"""What the recurrent layers of a model know of one sequence: the inputs of convolutions, and states.

A convolution over `kernel` tokens sees the `kernel` - 1 before a pass. The graph takes rows of these, and gives those
of the pass's own tokens. Rows of many tokens are kept, one after the other, so the next pass can follow any of them: a
rollback copies nothing, and no token is computed again.

A gated delta net has a state of fixed size as well, which only goes forward. The graph computes it in two steps: from a
state that is given, over tokens that earlier passes computed, by their rows and gates; then over those of the pass. It
gives the state after each step. Both are kept, and that of the last length that stays, so the next pass can follow any
of the last tokens, too: the recurrence runs over some of them again, but nothing else of the model.

Only a rollback beyond what is kept needs saved rows and states, of the end of a prompt for example, or begins anew.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from .onnx_file import Described, Recurrence
from .ort_package import bindings

_Arrays = list[npt.NDArray[Any]]

_KEPT = 64  # tokens that a rollback can always drop, at least
_BYTES = 64 << 20  # of all rows, as far as that allows the narrowest pass
_NARROWEST = 64
_SAVED = 2  # ends of prompts
_STATES = 8  # saved ones, of the last length that stays, before and after the last pass, and two of the next


@dataclass(frozen=True, slots=True)
class _Saved:
    """The rows before a pass after `length` tokens, and the state, by layer."""

    length: int
    rows: _Arrays
    state: _Arrays


@dataclass(slots=True)
class _Pass:
    """A pass that is bound: the tokens before it, its width, and the states before and after it."""

    start: int = 0
    width: int = 0
    before: _Arrays = field(default_factory=list)
    after: _Arrays = field(default_factory=list)


def widest(model: Described, most: int) -> int:
    """The most tokens of a pass whose rows do not take too much memory, at most `most`."""
    if model.recurrence is None:
        return most
    return max(_NARROWEST, min(most, _BYTES // _row_bytes(model, model.recurrence) - _KEPT))


def state_bytes(model: Described, most: int) -> int:
    """Bytes of all that a session keeps whose passes have at most `most` tokens."""
    if (recurrence := model.recurrence) is None:
        return 0
    most = widest(model, most)
    rows = _reach(recurrence, most) + most + (2 + _SAVED) * (recurrence.kernel - 1)
    state = 4 * len(recurrence.layers) * recurrence.heads * recurrence.key * recurrence.value
    return rows * _row_bytes(model, recurrence) + _STATES * state


def _reach(recurrence: Recurrence, most: int) -> int:
    """The tokens that a rollback can always drop, if passes have at most `most`."""
    return max(_KEPT, most) if recurrence.heads else _KEPT


def _row_bytes(model: Described, recurrence: Recurrence) -> int:
    return len(recurrence.layers) * (recurrence.channels * model.number_bytes + 2 * recurrence.heads * 4)


class RecurrentRows:
    """The rows of the last tokens, by layer, and the states after some of them.

    Row i of a buffer is that of token `_first` - (kernel - 1) + i; rows before the first token are zeros. Row i of the
    gates is that of token `_first` + i.

    Args:
        most: the most tokens of a pass.
    """

    def __init__(self, recurrence: Recurrence, dtype: npt.DTypeLike, most: int) -> None:
        self._recurrence, self._before = recurrence, recurrence.kernel - 1
        # With padding, no state is known after a pass, so the recurrence runs over all of it again.
        self._reach = _reach(recurrence, most)
        self._capacity = self._reach + most
        layers, shape = len(recurrence.layers), (self._before + self._capacity, recurrence.channels)
        self._rows: _Arrays = [np.zeros(shape, dtype) for _ in range(layers)]
        self._gates: _Arrays = []
        if recurrence.heads:
            self._gates = [np.zeros((self._capacity, 2 * recurrence.heads), np.float32) for _ in range(layers)]
        self._first = self._end = 0  # the tokens whose rows are kept
        self._states: dict[int, _Arrays] = {}  # by lengths between these
        self._made: list[_Arrays] = []
        self._pass = _Pass()
        self._marked = 0
        self._mark: _Saved | None = None  # if its rows are no longer in the buffers
        self._saved: list[_Saved] = []
        self._load(None)

    def cut(self, length: int) -> int:
        """The text has only `length` tokens; returns after how many of them the next pass can follow."""
        self._saved = [each for each in self._saved if each.length <= length]
        if self._marked > length:
            self._marked, self._mark = 0, None
        self._end = min(self._end, length)
        self._states = {at: state for at, state in self._states.items() if at <= length}
        known = [*self._saved, *([self._mark] if self._mark else [])]
        best = max(known, key=lambda each: each.length, default=None)
        if (nearest := self._nearest()) >= (best.length if best else 0):
            self._end = nearest
        else:
            self._load(best)
        return self._end

    def mark(self, length: int) -> None:
        """The first `length` tokens stay for now."""
        if self._first <= length <= self._end:
            self._marked, self._mark = length, None

    def save(self, length: int) -> None:
        """Save what the next pass needs, after `length` tokens, at the end of the last pass."""
        if (copied := self._copy(length)) is not None:
            self._saved = [*self._saved, copied][-_SAVED:]

    def bind(self, binding: Any, start: int, n: int) -> None:
        """Bind the buffers for a pass of `n` tokens after `start` tokens."""
        if start - self._first + n > self._capacity:
            self._move(max(self._first, start - self._reach))
        base = self._base(start)
        at, end = base - self._first, start - self._first
        for i, (layer, rows) in enumerate(zip(self._recurrence.layers, self._rows, strict=True)):
            self._bind(binding, f"{layer}.rows", rows[at : end + self._before], rows[end + self._before :][:n])
            if self._gates:
                self._bind(binding, f"{layer}.gates", self._gates[i][at:end], self._gates[i][end:][:n])
        if self._gates:
            self._bind_states(binding, base, _Pass(start, n))

    def passed(self, length: int) -> None:
        """The pass that was bound last ended; the text has `length` tokens."""
        self._end = length
        if not self._gates:
            return
        done = self._pass
        found = {done.start: self._states.get(done.start, done.before)}
        if (marked := max((at for at in self._states if at <= self._marked), default=None)) is not None:
            found[marked] = self._states[marked]
        if length == done.start + done.width:  # else it has seen padding
            found[length] = done.after
        self._states = found

    def _bind(self, binding: Any, name: str, past: npt.NDArray[Any], present: npt.NDArray[Any]) -> None:
        value = bindings().OrtValue.ortvalue_from_numpy
        binding.bind_ortvalue_input(f"past.{name}", value(past[None]))
        binding.bind_ortvalue_output(f"present.{name}", value(present[None]))

    def _bind_states(self, binding: Any, base: int, bound: _Pass) -> None:
        value = bindings().OrtValue.ortvalue_from_numpy
        bound.before = self._spare([])
        bound.after = self._spare(bound.before)
        for i, layer in enumerate(self._recurrence.layers):
            binding.bind_ortvalue_input(f"past.{layer}.state", value(self._states[base][i]))
            binding.bind_ortvalue_output(f"present.{layer}.start", value(bound.before[i]))
            binding.bind_ortvalue_output(f"present.{layer}.end", value(bound.after[i]))
        self._pass = bound

    def _spare(self, other: _Arrays) -> _Arrays:
        """A state that nothing needs any more, and not `other`."""
        kept = [*self._states.values(), *(each.state for each in (*self._saved, self._mark) if each), other]
        for made in self._made:
            if not any(made is each for each in kept):
                return made
        self._made.append([np.zeros(self._recurrence.state, np.float32) for _ in self._recurrence.layers])
        return self._made[-1]

    def _base(self, start: int) -> int:
        """The length, up to `start`, from whose state the recurrence runs."""
        return max(at for at in self._states if at <= start) if self._gates else start

    def _nearest(self) -> int:
        """The greatest length up to `_end` that a pass can follow; -1 if there is none."""
        if not self._gates:
            return self._end if self._end >= self._first else -1
        base = max(self._states, default=-1)
        return self._end if 0 <= self._end - base <= self._reach and base >= 0 else base

    def _move(self, first: int) -> None:
        """Drop the rows of tokens before `first`, but for those that a pass after it needs."""
        if self._first <= self._marked < first:
            self._mark = self._copy(self._marked)
        start, end = first - self._first, self._end - self._first
        for rows in self._rows:
            rows[: end - start + self._before] = rows[start : end + self._before].copy()
        for gates in self._gates:
            gates[: end - start] = gates[start:end].copy()
        self._first = first
        self._states = {at: state for at, state in self._states.items() if at >= first}

    def _copy(self, length: int) -> _Saved | None:
        """What a pass after `length` tokens needs; None if the state was not kept."""
        if self._gates and length not in self._states:
            return None
        at = length - self._first
        rows = [rows[at : at + self._before].copy() for rows in self._rows]
        return _Saved(length, rows, self._states.get(length, []))

    def _load(self, saved: _Saved | None) -> None:
        """Go back to what was saved, or to the beginning of the text."""
        self._first = self._end = saved.length if saved else 0
        for i, rows in enumerate(self._rows):
            rows[: self._before] = saved.rows[i] if saved else 0
        if not self._gates:
            return
        self._states = {}
        state = saved.state if saved else self._spare([])
        if saved is None:
            for each in state:
                each[:] = 0
        self._states = {self._end: state}
