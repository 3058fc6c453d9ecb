"""Incremental decoding of tokens to text: characters that span several tokens, stop strings that span rounds."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Sequence
from typing import NamedTuple


class Span(NamedTuple):
    """A part of the text, and whether the token that completed it was drafted."""

    text: str
    drafted: bool


class TextStream:
    """Decodes the bytes of tokens to text that can be shown.

    A character is held back until it is complete, and text that may begin a stop string until it is known whether it
    does. `stopped` is True after a stop string; the stop string and text after it are never released.

    Args:
        stop: the stop strings.
    """

    def __init__(self, stop: Sequence[str] = ()) -> None:
        self.stopped = False
        self._stop = tuple(filter(None, stop))
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self._held: list[Span] = []

    def push(self, piece: bytes, *, drafted: bool = False) -> list[Span]:
        """Add the bytes of one token; returns the text that can be shown now."""
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
        """The text that was held back as a possible stop string. The bytes of an incomplete character are dropped."""
        return self._release(None)

    def _release(self, length: int | None) -> list[Span]:
        """Release the first `length` of the characters held, all for None."""
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
    """The number of characters at the end of `text` that may begin one of `stops`."""
    longest = min(len(text), max(map(len, stops)) - 1)
    return next((n for n in range(longest, 0, -1) if any(s.startswith(text[-n:]) for s in stops)), 0)


def to_text(tokens: Sequence[int], piece: Callable[[int], bytes]) -> str:
    """The text of `tokens`; bytes that are not UTF-8 become U+FFFD. `piece` returns the bytes of a token."""
    return b"".join(map(piece, tokens)).decode("utf-8", "replace")
