"""Retokenization: the same text as tokens of two vocabularies.

The common form is bytes. Special tokens are represented by marks, which begin and end with a byte that never occurs in
UTF-8.
"""

from __future__ import annotations

import codecs
import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from math import prod

from ..backends import Vocabulary, common_prefix

_MARK = re.compile(rb"\xff(\d+)\xff")
_REACH = 64  # tokens before a change in which a seam is searched
_RECENT = 256  # most recent tokens by which two vocabularies are compared
# Prefixes of a text for vocabularies that add a space at the beginning of every text.
_OPENERS = ("\n", ".", "0")


def mark(token: int) -> bytes:
    """The mark that represents the special token `token`."""
    return b"\xff%d\xff" % token


def parts(text: bytes) -> Iterator[bytes | int]:
    """The parts of `text` between marks as bytes, and the special tokens of the marks as ints."""
    for i, part in enumerate(_MARK.split(text)):
        if i % 2:
            yield int(part)
        elif part:
            yield part


def whole(text: bytes) -> int:
    """The length of `text` in bytes without an incomplete character at its end."""
    tail = text[-4:]
    return len(text) - len(tail) + codecs.utf_8_decode(tail, "replace", False)[1]


def settled(text: str, size: int) -> bool:
    """Whether a word ends in `text` at or after its first `size` characters: before a space, or at the end of letters
    and digits. Tokenizers split text there first, so text that follows does not change the tokens of those
    characters."""
    for before, after in zip(text[size - 1 :], text[size:], strict=False):
        if before.isalnum() > after.isalnum() or (after == " " and not before.isspace()):
            return True
    return False


class Writer:
    """Tokenizes text that continues other text."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        plain = self._bytes(vocabulary.tokenize("a")) == b"a"
        self._openers = [] if plain else [(opener, vocabulary.tokenize(opener)) for opener in _OPENERS]

    def tokens(self, text: str) -> list[int]:
        """The tokens of `text` without a space added at its beginning."""
        for opener, opening in self._openers:
            tokens = self._vocabulary.tokenize(opener + text)
            n = len(opening)
            if tokens[:n] == opening and self._bytes(tokens[n:]) == text.encode("utf-8", "replace"):
                return tokens[n:]
        return self._vocabulary.tokenize(text)

    def _bytes(self, tokens: Sequence[int]) -> bytes:
        return b"".join(map(self._vocabulary.token_bytes, tokens))


class SpecialTokens:
    """The correspondence of special tokens: a token corresponds to the one with the same label. An end-of-generation
    token for which there is none corresponds to the other vocabulary's token that ends a turn."""

    def __init__(self, target: Vocabulary, draft: Vocabulary) -> None:
        self._target = target
        self._draft = draft
        self._known_bytes: dict[int, bytes] = {}
        self._known_targets: dict[int, int | None] = {}

    def to_bytes(self, token: int) -> bytes:
        """The bytes of the target's `token`. A special token is the mark of the draft's corresponding token, or its
        label as plain text if there is none."""
        if (text := self._known_bytes.get(token)) is None:
            text = self._known_bytes[token] = self._target.token_bytes(token) or self._special(token)
        return text

    def target_token(self, token: int) -> int | None:
        """The target's token for the draft's special token `token`; None if there is none."""
        if token not in self._known_targets:
            self._known_targets[token] = _counterpart(token, self._draft, self._target)
        return self._known_targets[token]

    def _special(self, token: int) -> bytes:
        same = _counterpart(token, self._target, self._draft)
        return self._target.label(token).encode("utf-8", "replace") if same is None else mark(same)


def _counterpart(token: int, of: Vocabulary, among: Vocabulary) -> int | None:
    label = of.label(token)
    tokens = among.tokenize(label, special=True) if label else []
    if len(tokens) == 1 and among.label(tokens[0]) == label:
        return tokens[0]
    return _turn_end(among) if of.is_eog(token) else None


def _turn_end(vocabulary: Vocabulary) -> int | None:
    """The end-of-generation token whose label occurs in the chat template, or else the first one."""
    ends: list[tuple[bool, int]] = []
    for label in vocabulary.specials():
        tokens = vocabulary.tokenize(label, special=True)
        if len(tokens) == 1 and vocabulary.is_eog(tokens[0]):
            ends.append((label not in (vocabulary.template or ""), tokens[0]))
    return min(ends)[1] if ends else None


class Context:
    """The target's tokens as text, without the bos at the beginning: the draft has its own bos, or none."""

    def __init__(self, target: Vocabulary, specials: SpecialTokens) -> None:
        self.tokens: list[int] = []
        self.text = b""
        #: The offset in `text` of the end of each token.
        self.stops: list[int] = []
        self._bos = target.bos
        self._specials = specials

    def read(self, context: Sequence[int]) -> None:
        """Read `context`. The common prefix with the one before is not converted again."""
        same = common_prefix(self.tokens, context)
        del self.tokens[same:], self.stops[same:]
        length = self.stops[-1] if same else 0
        pieces = [self.text[:length]]
        for at, token in enumerate(context[same:], same):
            pieces.append(b"" if at == 0 and token == self._bos else self._specials.to_bytes(token))
            length += len(pieces[-1])
            self.stops.append(length)
        self.tokens.extend(context[same:])
        self.text = b"".join(pieces)


class Line:
    """A text as tokens of the draft model: the committed text, and the drafted text after it.

    Attributes:
        tokens: the tokens.
        stops: the offset in `text` of the end of each token.
        probs: the probability with which each token was drafted; 1 for committed text.
        text: the bytes.
        given: the length in bytes of the committed text.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._writer = Writer(vocabulary)
        self.tokens = vocabulary.tokenize("", start=True)  # the bos, if the model requires one
        self._start = len(self.tokens)
        self.stops = [0] * self._start
        self.probs = [1.0] * self._start
        self.text = bytearray()
        self.given = 0

    def add(self, token: int, text: bytes, prob: float = 1.0) -> None:
        """Append a token."""
        self.text += text
        self.tokens.append(token)
        self.stops.append(len(self.text))
        self.probs.append(prob)

    def follow(self, text: bytes) -> int:
        """Make this the tokens of `text` without an incomplete character at its end; returns the number of tokens that
        did not change.

        Tokens are kept up to a seam, where a token ends and a word begins. No tokenizer joins text across it, so the
        tokens before it are those of the whole text, which is not tokenized again.
        """
        kept = self._seam(text, _agreement(self.text, text))
        del self.tokens[kept:], self.stops[kept:], self.probs[kept:]
        del self.text[self.stops[-1] if kept else 0 :]
        for part in parts(text[len(self.text) : whole(text)]):
            if isinstance(part, int):
                self.add(part, mark(part))
            else:
                self._write(part)
        self.given = len(self.text)
        return kept

    def agrees(self, text: bytes) -> bool:
        """Whether one of this text and `text` is a prefix of the other."""
        return self.text.startswith(text[: len(self.text)])

    def beyond(self, at: int) -> int:
        """The number of tokens that end after the byte `at`."""
        return len(self.stops) - bisect_right(self.stops, at)

    def probability(self, start: int, stop: int) -> float:
        """The product of the probabilities of the tokens of the bytes from `start` to `stop`."""
        return prod(self.probs[bisect_right(self.stops, start) : bisect_left(self.stops, stop) + 1])

    def misaligned(self, context: Context) -> float:
        """The share of recent tokens that end inside a token of `context`. After such a token the target's token may
        continue. 1/8 without data."""
        last = bisect_right(context.stops, len(self.text))
        ends = context.stops[max(0, last - _RECENT) : last] or [0]
        own = self.stops[bisect_right(self.stops, ends[0]) : bisect_right(self.stops, ends[-1])]
        return (1 + len(set(own) - set(ends))) / (8 + len(own))

    def _write(self, text: bytes) -> None:
        tokens = self._writer.tokens(text.decode("utf-8", "replace"))
        for token in tokens:
            size = len(self._vocabulary.token_bytes(token))
            self.add(token, text[:size])
            text = text[size:]
        if text and tokens:  # text that this vocabulary cannot represent is assigned to the last token
            self.text += text
            self.stops[-1] = len(self.text)

    def _seam(self, text: bytes, agreed: int) -> int:
        last = bisect_right(self.stops, agreed)
        first = max(self._start, last - _REACH)
        for n in range(last, first, -1):
            if _is_seam(text, self.stops[n - 1]):
                return n
        while first > self._start and text[self.stops[first - 1]] & 0xC0 == 0x80:  # inside a character
            first -= 1
        return first


def _is_seam(text: bytes, at: int) -> bool:
    """Whether a special token or a word ends at `at`. Spaces are not words: how they are split depends on what
    follows."""
    before, after = text[at - 1 : at], text[at : at + 1]
    return before == b"\xff" or (after in {b" ", b"\xff"} and not before.isspace())


def _agreement(left: bytes | bytearray, right: bytes | bytearray) -> int:
    """The length of the common prefix of two texts, by bisection."""
    low, high = 0, min(len(left), len(right))
    while low < high:
        middle = (low + high + 1) // 2
        if left[low:middle] == right[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
