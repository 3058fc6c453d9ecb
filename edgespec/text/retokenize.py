"""Text between two vocabularies: each writes it in tokens of its own, and neither may change it.

What both share is bytes. Special tokens stand in them as marks, which no text can hold: a mark begins and ends
with a byte that UTF-8 never has.
"""

from __future__ import annotations

import codecs
import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from math import prod

from ..backends import Vocabulary, common_prefix

_MARK = re.compile(rb"\xff(\d+)\xff")
_REACH = 64  # tokens back from a change within which a seam is looked for
_RECENT = 256  # tokens by which two vocabularies are compared
# What may stand before a text so that a vocabulary which begins every text with a space need not do so there.
_OPENERS = ("\n", ".", "0")


def mark(token: int) -> bytes:
    """How the special `token` stands in text."""
    return b"\xff%d\xff" % token


def parts(text: bytes) -> Iterator[bytes | int]:
    """Stretches of text without marks and, as numbers, the tokens of the marks between."""
    for i, part in enumerate(_MARK.split(text)):
        if i % 2:
            yield int(part)
        elif part:
            yield part


def whole(text: bytes) -> int:
    """How many bytes of `text` are whole characters: the beginning of one at its end does not count."""
    tail = text[-4:]
    return len(text) - len(tail) + codecs.utf_8_decode(tail, "replace", False)[1]


def settled(text: str, size: int) -> bool:
    """Whether a word ends in `text` at or after its first `size` characters, so that those will not join what
    follows: before a space, or where letters and digits end. Vocabularies split text there before all else."""
    for before, after in zip(text[size - 1 :], text[size:], strict=False):
        if before.isalnum() > after.isalnum() or (after == " " and not before.isspace()):
            return True
    return False


class Writer:
    """How a vocabulary writes text that goes on from other text."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        plain = self._spelt(vocabulary.tokenize("a")) == b"a"
        self._openers = [] if plain else [(opener, vocabulary.tokenize(opener)) for opener in _OPENERS]

    def tokens(self, text: str) -> list[int]:
        """The tokens of `text` with no space put before it."""
        for opener, opening in self._openers:
            tokens = self._vocabulary.tokenize(opener + text)
            n = len(opening)
            if tokens[:n] == opening and self._spelt(tokens[n:]) == text.encode("utf-8", "replace"):
                return tokens[n:]
        return self._vocabulary.tokenize(text)

    def _spelt(self, tokens: Sequence[int]) -> bytes:
        return b"".join(map(self._vocabulary.token_bytes, tokens))


class SpecialTokens:
    """Which special token of one vocabulary stands for which of another: that of the same label; and for one that
    ends the turn, where the other has none of that label, the one that ends it there."""

    def __init__(self, target: Vocabulary, draft: Vocabulary) -> None:
        self._target = target
        self._draft = draft
        self._spelt: dict[int, bytes] = {}
        self._meant: dict[int, int | None] = {}

    def spell(self, token: int) -> bytes:
        """What the target's `token` adds to the text: marks are the draft's tokens. A special token that the draft
        lacks is plain text to it."""
        if (text := self._spelt.get(token)) is None:
            text = self._spelt[token] = self._target.token_bytes(token) or self._special(token)
        return text

    def meant(self, token: int) -> int | None:
        """The target's token for the draft's special `token`, None where it has none."""
        if token not in self._meant:
            self._meant[token] = _counterpart(token, self._draft, self._target)
        return self._meant[token]

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
    """Of the tokens that end a text the one that the chat template spells, or else the first."""
    ends: list[tuple[bool, int]] = []
    for label in vocabulary.specials():
        tokens = vocabulary.tokenize(label, special=True)
        if len(tokens) == 1 and vocabulary.is_eog(tokens[0]):
            ends.append((label not in (vocabulary.template or ""), tokens[0]))
    return min(ends)[1] if ends else None


class Context:
    """The target's tokens as text. A bos before all else is left out: the draft has its own, or none."""

    def __init__(self, target: Vocabulary, specials: SpecialTokens) -> None:
        self.tokens: list[int] = []
        self.text = b""
        #: For each token, where in `text` it ends.
        self.stops: list[int] = []
        self._bos = target.bos
        self._specials = specials

    def read(self, context: Sequence[int]) -> None:
        """Take in `context`; what it shares with the one before is not read again."""
        same = common_prefix(self.tokens, context)
        del self.tokens[same:], self.stops[same:]
        length = self.stops[-1] if same else 0
        pieces = [self.text[:length]]
        for at, token in enumerate(context[same:], same):
            pieces.append(b"" if at == 0 and token == self._bos else self._specials.spell(token))
            length += len(pieces[-1])
            self.stops.append(length)
        self.tokens.extend(context[same:])
        self.text = b"".join(pieces)


class Line:
    """One text as a vocabulary's tokens, as far as it has been written.

    `tokens` and, for each, where in `text` it ends (`stops`) and the probability it was drafted with (`probs`; 1 for
    what was not drafted). All before the byte `given` was to be followed; what comes after was drafted.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._writer = Writer(vocabulary)
        self.tokens = vocabulary.tokenize("", start=True)  # the bos, of a model that asks for one
        self._start = len(self.tokens)
        self.stops = [0] * self._start
        self.probs = [1.0] * self._start
        self.text = bytearray()
        self.given = 0

    def add(self, token: int, text: bytes, prob: float = 1.0) -> None:
        """Write one more token."""
        self.text += text
        self.tokens.append(token)
        self.stops.append(len(self.text))
        self.probs.append(prob)

    def follow(self, text: bytes) -> int:
        """Write `text` and nothing else, all but an unfinished character; returns how many tokens stayed.

        What is written already stays up to a seam, a place where a token ends and a word begins. No vocabulary joins
        across it, so the tokens before it are those of the whole text, without writing that anew.
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
        """Whether it is the beginning of `text`, or `text` its."""
        return self.text.startswith(text[: len(self.text)])

    def beyond(self, at: int) -> int:
        """How many of its tokens end behind the byte `at`."""
        return len(self.stops) - bisect_right(self.stops, at)

    def sureness(self, start: int, stop: int) -> float:
        """The probability of the tokens that spell the bytes from `start` to `stop`."""
        return prod(self.probs[bisect_right(self.stops, start) : bisect_left(self.stops, stop) + 1])

    def strays(self, context: Context) -> float:
        """The share of its tokens, of late, that end inside one of the `context`'s, so that text which ends with one
        may yet grow; an eighth where nothing is known."""
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
        if text and tokens:  # what this vocabulary cannot spell: its last token stands for the rest
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
    """Whether a special token ended here, or a word did. Spaces are no word: they are split by what follows."""
    before, after = text[at - 1 : at], text[at : at + 1]
    return before == b"\xff" or (after in {b" ", b"\xff"} and not before.isspace())


def _agreement(left: bytes | bytearray, right: bytes | bytearray) -> int:
    """How many leading bytes two texts share, in a few comparisons however long they are."""
    low, high = 0, min(len(left), len(right))
    while low < high:
        middle = (low + high + 1) // 2
        if left[low:middle] == right[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
