"""The recurrent state of a llama.cpp sequence, which only goes forward, and the three ways to go back in it.

Snapshots: llama.cpp keeps the states after the last tokens of a pass. Going back over these costs nothing, but is
possible once after a pass, and never over its first token: llama.cpp accepts that, and computes wrong logits. It
accepts a state in which a pass was aborted, too, so passes that are judged are not aborted. Few architectures have
them.

A spare sequence: it shares the state at a length that stays, and llama.cpp copies a state when one of two sequences
that share it goes on. Going back there means that the tokens after it are owed: they ride in the next pass.

Saved states: copies in the memory of the CPU, made near the end of a prompt. The next prompt of a chat mostly begins
like the last one, but for its end.
"""

from __future__ import annotations

from typing import Any

from ..errors import EngineError
from .llama_saved import SavedStates

_TEXT, _SPARE = 0, 1  # sequences


class Recurrent:
    """The recurrent state of sequence 0 of a llama_context, and its KV cells where it has any.

    Nothing is done when a rollback happens, only before the next pass: then llama.cpp has to go back once, however many
    rollbacks there were.

    Args:
        snapshots: those that llama.cpp granted; 0 for a spare sequence.
        saved: the most states to save.
    """

    def __init__(self, low: Any, context: Any, snapshots: int, saved: int) -> None:
        self._low = low
        self._memory = low.llama_get_memory(context)
        self._snapshots = snapshots
        self._at: int | None = 0  # the length whose state sequence 0 has; None if it has none of use
        self._free = 0  # tokens that snapshots take back now
        self._spare = 0  # the length whose state the spare sequence has; 0 if none
        self._due = True  # whether the spare sequence should take the state of the next pass's start
        self._saved = SavedStates(low, context, saved)

    @property
    def aborts(self) -> bool:
        """Whether a pass that may be judged can be aborted without losing the state before it."""
        return not self._snapshots

    def mark(self) -> None:
        """What is held stays for now."""
        self._due = True

    def cut(self, length: int) -> int:
        """The text has only `length` tokens; returns for how many of them there is a state."""
        self._saved.drop(length)
        if self._spare > length:
            self._spare = 0
        return self._nearest(length)

    def begin(self, length: int) -> int:
        """Before a pass after `length` tokens: go back to the nearest state, and return its length."""
        at = self._nearest(length)
        if at != self._at and not self._go_back(at):
            self._at = None
            return self.begin(length)
        if self._due and at == length and not self._snapshots:
            self._low.llama_memory_seq_cp(self._memory, _TEXT, _SPARE, 0, 0)
            self._spare, self._due = at, False
        return at

    def passed(self, length: int, width: int) -> None:
        """A pass of `width` tokens ended at `length` tokens."""
        self._at = length
        self._free = min(self._snapshots, width - 1)

    def failed(self, length: int) -> int:
        """A pass after `length` tokens failed or was aborted; returns for how many of them there is a state."""
        self._at, self._free = None, 0
        return self._nearest(length)

    def saves(self, length: int) -> bool:  # noqa: ARG002 - every prompt's
        """Whether to save the state after `length` tokens of a prompt."""
        return True

    def save(self, length: int) -> None:
        """Save the present state, of `length` tokens."""
        self._saved.save(length)

    def _nearest(self, length: int) -> int:
        """The greatest length up to `length` of which there is a state."""
        if self._at is not None and self._at - self._free <= length <= self._at:
            return length
        known = [self._spare, *self._saved.lengths]
        if self._at is not None:
            known.append(self._at)
        return max((each for each in known if each <= length), default=0)

    def _go_back(self, at: int) -> bool:
        """Make sequence 0 hold exactly the first `at` tokens; False if llama.cpp cannot."""
        if self._at is not None and self._at - self._free <= at < self._at:
            done = self._remove(at)
        elif not at:
            done = self._remove(0)
        elif at == self._spare:
            # The range of no tokens: the spare sequence shares the state, and needs no cells of attention.
            self._low.llama_memory_seq_cp(self._memory, _SPARE, _TEXT, 0, 0)
            done = self._remove(at)
        else:
            done = self._saved.load(at) and self._remove(at)
            if not done:
                self._saved.forget(at)
        if done:
            self._at, self._free = at, 0
        elif at == self._spare:
            self._spare = 0
        elif not at:
            raise EngineError("llama.cpp could not clear the state of a sequence; open the model again")
        return done

    def _remove(self, length: int) -> bool:
        return bool(self._low.llama_memory_seq_rm(self._memory, _TEXT, length, -1))
