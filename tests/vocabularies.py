"""Vocabularies with different tokens for the same text."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from edgespec.backends import Vocabulary
from edgespec.backends.toy import Bytes, Rule
from edgespec.text.retokenize import mark
from edgespec.types import Floats

KINDS = ("gpt-2", "llama-3", "qwen2", "spm-both")
BYTES = Bytes()


class Toy(Bytes):
    """The bytes and a few words, of which the longest is taken; its own specials; its tokens count as they are read."""

    def __init__(self, *words: str, specials: Sequence[str] = ("<s>", "</s>"), template: str | None = None) -> None:
        self._words = [word.encode() for word in words]
        self._specials = tuple(specials)
        self.size = 256 + len(words) + len(specials)
        self.template = template
        self.read = 0

    def tokenize(self, text: str, *, special: bool = False, start: bool = False) -> list[int]:
        rest, tokens = text.encode(), list[int]()
        self.read += len(rest)
        while rest:
            marks = [s.encode() for s in self._specials] if special else []
            found = [i for i, s in enumerate(marks) if rest.startswith(s)]
            words = [i for i, word in enumerate(self._words) if rest.startswith(word)]
            best = max(words, key=lambda i: len(self._words[i]), default=None)
            if found:
                tokens.append(256 + len(self._words) + found[0])
                rest = rest[len(marks[found[0]]) :]
            else:
                tokens.append(rest[0] if best is None else 256 + best)
                rest = rest[1 if best is None else len(self._words[best]) :]
        return tokens

    def token_bytes(self, token: int) -> bytes:
        return bytes([token]) if token < 256 else (*self._words, *[b""] * len(self._specials))[token - 256]

    def label(self, token: int) -> str:
        return f"<0x{token:02X}>" if token < 256 else (*map(bytes.decode, self._words), *self._specials)[token - 256]

    def is_eog(self, token: int) -> bool:
        return token >= 256 + len(self._words) and not self.label(token).startswith("<s")

    def specials(self) -> Sequence[str]:
        return self._specials

    def special(self, label: str) -> int:
        return 256 + len(self._words) + self._specials.index(label)


def spelt(vocabulary: Vocabulary, tokens: Sequence[int]) -> bytes:
    return b"".join(vocabulary.token_bytes(token) or mark(token) for token in tokens)


FINE = Toy("re", "st", "au", "ra", "nt", "go", "od")


def by_text(vocabulary: Vocabulary) -> Rule:
    """Says words, by the last bytes of the text alone, however it was spelt."""
    words = [vocabulary.tokenize(text)[0] for text in ("e", "s", " ", "o", "d", ".", "\n")]

    def rule(held: Sequence[int]) -> Floats:
        row = np.zeros(vocabulary.size, dtype=np.float32)
        row[words[sum(spelt(vocabulary, held[-8:])[-3:]) % len(words)]] = 9.0
        return row

    return rule
