"""Incremental decoding of tokens to text: characters that span several tokens, stop strings that span rounds."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol


class Span(NamedTuple):
    """A part of the text.

    Args:
        text: the text.
        drafter: the name of the drafter that guessed the token that completed it; empty if none did. The names of
            several that agree are joined by "+".
        reasoning: whether it belongs to the reasoning.
    """

    text: str
    drafter: str = ""
    reasoning: bool = False

    @property
    def drafted(self) -> bool:
        """Whether a drafter guessed it."""
        return bool(self.drafter)


class Splitter(Protocol):
    """Separates the reasoning of an answer from its text."""

    @property
    def inside(self) -> bool:
        """Whether what comes next belongs to the reasoning or to its markers."""
        ...

    def push(self, text: str, token: int, *, drafter: str) -> list[Span]:
        """Add the text that `token` completed; returns what can be told apart now."""
        ...

    def flush(self) -> list[Span]:
        """The rest, at the end of the answer."""
        ...


class SpanBuffer:
    """Text that is held back, in spans."""

    def __init__(self) -> None:
        self._held: list[Span] = []

    @property
    def text(self) -> str:
        """All of it."""
        return "".join(span.text for span in self._held)

    def add(self, span: Span) -> None:
        """Append `span`, unless it is empty."""
        if span.text:
            self._held.append(span)

    def take(self, length: int | None = None) -> list[Span]:
        """Remove and return the first `length` characters, all for None."""
        if length is None:
            spans, self._held = self._held, []
            return spans
        spans = []
        while length > 0:
            span = self._held.pop(0)
            spans.append(span._replace(text=span.text[:length]))
            if len(span.text) > length:
                self._held.insert(0, span._replace(text=span.text[length:]))
            length -= len(span.text)
        return spans


class TextStream:
    """Decodes the bytes of tokens to text that can be shown.

    A character is held back until it is complete, and text that may begin a stop string until it is known whether it
    does. `stopped` is True after a stop string; the stop string and text after it are never released. Stop strings end
    the answer, so they are not searched in its reasoning.

    Args:
        stop: the stop strings.
        splitter: separates the reasoning; None if there is none.
        shown: bytes of special tokens that are part of the text.
    """

    def __init__(
        self, stop: Sequence[str] = (), splitter: Splitter | None = None, shown: Mapping[int, bytes] | None = None
    ) -> None:
        self.stopped = False
        self.reasoning_tokens = 0  #: tokens of the reasoning and its markers
        self._stop = tuple(filter(None, stop))
        self._splitter = splitter
        self._shown_tokens = shown or {}
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self._held = SpanBuffer()

    def push(self, piece: bytes, token: int = -1, *, drafter: str = "") -> list[Span]:
        """Add the bytes of one token; returns the text that can be shown now.

        Args:
            token: the token; only a splitter needs it.
            drafter: of this token, as in `Span`.
        """
        text, splitter = self._decode(self._shown_tokens.get(token, piece)), self._splitter
        if splitter is None:
            return self._answer(Span(text, drafter))
        inside = splitter.inside
        spans = self._shown(splitter.push(text, token, drafter=drafter))
        self.reasoning_tokens += inside or splitter.inside
        return spans

    def flush(self) -> list[Span]:
        """The text that was held back. The bytes of an incomplete character are dropped."""
        spans = self._shown(self._splitter.flush()) if self._splitter is not None else []
        return spans if self.stopped else [*spans, *self._held.take()]

    def _shown(self, spans: Sequence[Span]) -> list[Span]:
        shown: list[Span] = []
        for span in spans:
            if span.reasoning:
                shown += [*self._held.take(), span]
            elif not self.stopped:
                shown += self._answer(span)
        return shown

    def _answer(self, span: Span) -> list[Span]:
        """Add `span` to the answer; returns what cannot be a part of a stop string."""
        self._held.add(span)
        if not self._stop:
            return self._held.take()
        held = self._held.text
        found = [at for stop in self._stop if (at := held.find(stop)) >= 0]
        if found:
            self.stopped = True
            shown = self._held.take(min(found))
            self._held.take()
            return shown
        return self._held.take(len(held) - undecided(held, self._stop))


def undecided(text: str, strings: Sequence[str]) -> int:
    """The number of characters at the end of `text` that may begin one of `strings`."""
    longest = min(len(text), max(map(len, strings)) - 1)
    return next((n for n in range(longest, 0, -1) if any(s.startswith(text[-n:]) for s in strings)), 0)


def to_text(tokens: Sequence[int], piece: Callable[[int], bytes]) -> str:
    """The text of `tokens`; bytes that are not UTF-8 become U+FFFD. `piece` returns the bytes of a token."""
    return b"".join(map(piece, tokens)).decode("utf-8", "replace")
