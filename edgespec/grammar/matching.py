"""The constraint of one answer, by llguidance's matcher."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..constraint import Mask
from ..errors import GrammarError


class Matching:
    """A `Constraint`. The matcher stands at the end of a path, and goes from one to the next by rollback.

    Args:
        begin: a new matcher, at the beginning of the grammar.
        size: tokens of the vocabulary.
        ends: the end-of-generation tokens.
    """

    def __init__(self, begin: Callable[[], Any], size: int, ends: Sequence[int]) -> None:
        self._begin = begin
        self._matcher = begin()
        self._size = size
        self._ends = frozenset(ends)
        self._only_ends = np.zeros(size, np.bool_)
        self._only_ends[list(ends)] = True
        self._committed: list[int] = []
        #: Tokens after the committed ones that the matcher has read.
        self._path: list[int] = []
        self._over = self._matcher.is_stopped()
        self._masks: dict[tuple[int, ...], Mask] = {}
        self._forced: dict[tuple[int, ...], Sequence[int]] = {}

    def allowed(self, path: Sequence[int] = ()) -> Mask:
        """See `Constraint`. Raises GrammarError if the grammar became too complex here, or no token may follow."""
        key = tuple(path)
        mask = self._masks.get(key)
        if mask is None:
            mask = self._masks[key] = self._mask(key)
        return mask

    def admits(self, path: Sequence[int]) -> int:
        read = self._go(path)
        ends = read < len(path) and path[read] in self._ends and self._matcher.is_accepting()
        return read + 1 if ends else read

    def forced(self, path: Sequence[int] = ()) -> Sequence[int]:
        key = tuple(path)
        found = self._forced.get(key)
        if found is None:
            before = self._forced.get(key[:-1], ())[:1] if key else ()
            rest = self._forced[key[:-1]][1:] if before and before[0] == key[-1] else ()
            found = self._forced[key] = rest or self._forced_here(key)
        return found

    def ended(self, path: Sequence[int] = ()) -> bool:
        if not path:
            return bool(self._over)
        return self._go(path) < len(path) or bool(self._matcher.is_stopped())

    def commit(self, token: int) -> None:
        self._masks.clear()
        self._forced.clear()
        self._go(())
        if self._matcher.try_consume_tokens([token]) != 1:
            raise self._failed("the grammar does not allow the token")
        self._committed.append(token)
        # Asked here only: computing a mask may tell the matcher that it has stopped, and drafts must not tell that.
        self._over = self._matcher.is_stopped()

    def _mask(self, path: tuple[int, ...]) -> Mask:
        if self._go(path) < len(path) or self._matcher.is_stopped():
            if self._matcher.is_error():
                raise self._failed("the grammar cannot be followed")
            return self._only_ends
        bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        if self._matcher.is_error():
            raise self._failed("the grammar cannot be followed")
        mask = np.unpackbits(bits, count=self._size, bitorder="little").view(np.bool_)
        if not mask.any():
            raise GrammarError("no token of the vocabulary can follow by the grammar; give one that it can write")
        return mask

    def _forced_here(self, path: tuple[int, ...]) -> Sequence[int]:
        if self._go(path) < len(path) or self._matcher.is_stopped():
            return ()
        return tuple(self._matcher.compute_ff_tokens())

    def _go(self, path: Sequence[int]) -> int:
        """Read `path` after the committed tokens, as far as it is admitted; returns how many of its tokens are."""
        if self._matcher.is_error():
            self._begin_again()
        held, same = self._path, 0
        while same < len(held) and same < len(path) and held[same] == path[same]:
            same += 1
        if same < len(held):
            self._matcher.rollback(len(held) - same)
            del held[same:]
        rest = path[same:]
        end = next((n for n, token in enumerate(rest) if token in self._ends), len(rest))
        if end:
            read = self._matcher.try_consume_tokens(list(rest[:end]))
            held += rest[:read]
        return len(held)

    def _begin_again(self) -> None:
        """A matcher in place of one that failed on a path: an error is never left."""
        self._matcher, self._path = self._begin(), []
        self._matcher.try_consume_tokens(self._committed)

    def _failed(self, what: str) -> GrammarError:
        reason = " ".join(self._matcher.get_error().split())
        return GrammarError(f"{what}: {reason or 'it ends before'}; use a simpler grammar")
