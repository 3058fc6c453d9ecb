"""Tokens to text as it streams: characters that span tokens, and stop strings that span rounds."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Sequence
from typing import NamedTuple


class Span(NamedTuple):
    """A stretch of text, and whether the token that completed it was drafted."""

    text: str
    drafted: bool


class TextStream:
    """Turns pieces of UTF-8 into text that may be shown.

    A character is held back until its last byte is there, and text that might begin a stop string until it is
    decided. `stopped` says that a stop string came; it and what follows are never released.
    """

    def __init__(self, stop: Sequence[str] = ()) -> None:
        self.stopped = False
        self._stop = tuple(filter(None, stop))
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self._held: list[Span] = []

    def push(self, piece: bytes, *, drafted: bool = False) -> list[Span]:
        """Add the piece of one token; returns what may be shown now."""
        if text := self._decode(piece):
            self._held.append(Span(text, drafted))
        if not self._stop:
            return self._release(None)
        held = "".join(span.text for span in self._held)
        found = [at for stop in self._stop if (at := held.find(stop)) >= 0]
        if found:
            self.stopped = True
            shown = self._release(min(found))
            self._held.clear()
            return shown
        return self._release(len(held) - _undecided(held, self._stop))

    def flush(self) -> list[Span]:
        """What was held back only in case of a stop string. The bytes of an unfinished character are dropped."""
        return self._release(None)

    def _release(self, length: int | None) -> list[Span]:
        """The first `length` characters held, all where None."""
        if length is None:
            spans, self._held = self._held, []
            return spans
        spans = []
        while length > 0:
            span = self._held.pop(0)
            spans.append(Span(span.text[:length], span.drafted))
            if len(span.text) > length:
                self._held.insert(0, Span(span.text[length:], span.drafted))
            length -= len(span.text)
        return spans


def _undecided(text: str, stops: Sequence[str]) -> int:
    """How many characters at the end of `text` might begin one of `stops`."""
    longest = min(len(text), max(map(len, stops)) - 1)
    return next((n for n in range(longest, 0, -1) if any(s.startswith(text[-n:]) for s in stops)), 0)


def to_text(tokens: Sequence[int], piece: Callable[[int], bytes]) -> str:
    """The text of `tokens` all at once; bytes that are no UTF-8 show as U+FFFD."""
    return b"".join(map(piece, tokens)).decode("utf-8", "replace")
