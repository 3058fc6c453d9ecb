"""Texts of earlier chats as tokens on disk, for look-ups.

Nothing is stored unless an app makes an `EarlierTexts` and adds to it. The texts are in an unencrypted file in the
cache folder, which only the user can read; `EarlierTexts.forget` deletes it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..errors import OptionError
from ..storage.cache import Shelf, forget_kind

_KIND = "memory"
_VERSION = 1


class EarlierTexts:
    """The stored texts of one vocabulary.

    A file that is damaged or of another identity counts as empty; errors of writing are ignored. If two processes add
    at the same time, one text may be lost, but not the file.

    Args:
        identity: a key for the vocabulary. Each identity has its own file.
        vocab: the size of the vocabulary.
        limit: the most tokens to store, some 6 bytes each on disk. The oldest texts are dropped first.

    Raises:
        OptionError: a `limit` below 1.
    """

    def __init__(self, identity: str, vocab: int, limit: int = 1 << 16) -> None:
        if limit < 1:
            raise OptionError(f"limit is {limit}; it must be 1 token or more")
        self._shelf = Shelf(_KIND, identity, _VERSION)
        self._vocab = vocab
        self._limit = limit

    @property
    def path(self) -> Path:
        """The path of the file."""
        return self._shelf.path

    def texts(self) -> list[list[int]]:
        """The stored texts, the oldest first."""
        texts = self._shelf.read().get("texts")
        return self._newest(texts) if isinstance(texts, list) and self._sound(texts) else []

    def add(self, tokens: Sequence[int]) -> None:
        """Store `tokens`, a whole text. It replaces stored texts that are its prefixes, such as earlier turns of a
        chat."""
        text = [int(token) for token in tokens]
        if not text:
            return
        texts = [kept for kept in self.texts() if kept != text[: len(kept)]]
        self._shelf.write({"texts": self._newest([*texts, text])})

    def forget(self) -> None:
        """Delete the stored texts.

        Raises:
            EdgespecError: the file cannot be deleted.
        """
        self._shelf.forget()

    def _sound(self, texts: Any) -> bool:
        """Whether `texts` are lists of tokens of the vocabulary; a damaged file must not give others to the model."""
        return all(
            isinstance(text, list) and all(type(token) is int and 0 <= token < self._vocab for token in text)
            for text in texts
        )

    def _newest(self, texts: list[list[int]]) -> list[list[int]]:
        """The newest of `texts` within the limit; if the newest one exceeds it, the end of that."""
        room = self._limit
        fitting: list[list[int]] = []
        for text in reversed(texts):
            if len(text) > room:
                break
            fitting.append(text)
            room -= len(text)
        if texts and not fitting:
            fitting.append(texts[-1][-room:])
        return fitting[::-1]


def forget_all() -> int:
    """Delete the stored texts of all vocabularies; returns the number of files.

    Raises:
        EdgespecError: a file cannot be deleted.
    """
    return forget_kind(_KIND)
