"""What was said in earlier sessions, as tokens on disk, so that look-ups find it again.

Nothing is kept unless an app makes an `EarlierTexts` and adds to it. Texts lie unencrypted in a file that only the user
may read, in the cache folder; `EarlierTexts.forget` deletes it.
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
    """The texts kept for one vocabulary.

    A file that cannot be read, or is not ours, holds no texts; one that cannot be written is left. Where two
    processes add at the same instant, one text may be lost, never the file.

    Args:
        identity: what the tokens belong to: the model's file, or its vocabulary. Each identity has a file of its own.
        vocab: the vocabulary's size.
        limit: tokens to keep, some 6 bytes each on disk. The oldest texts are dropped first.

    Raises:
        OptionError: a `limit` below 1.
    """

    def __init__(self, identity: str, vocab: int, limit: int = 1 << 16) -> None:
        if limit < 1:
            raise OptionError(f"the memory's limit is {limit} tokens; it must be 1 or more")
        self._shelf = Shelf(_KIND, identity, _VERSION)
        self._vocab = vocab
        self._limit = limit

    @property
    def path(self) -> Path:
        """Where the texts lie."""
        return self._shelf.path

    def texts(self) -> list[list[int]]:
        """What is kept, the oldest first."""
        texts = self._shelf.read().get("texts")
        return self._newest(texts) if isinstance(texts, list) and self._sound(texts) else []

    def add(self, tokens: Sequence[int]) -> None:
        """Keep `tokens`, a whole text. It takes the place of those it continues: a chat may be added at every turn."""
        text = [int(token) for token in tokens]
        if not text:
            return
        texts = [kept for kept in self.texts() if kept != text[: len(kept)]]
        self._shelf.write({"texts": self._newest([*texts, text])})

    def forget(self) -> None:
        """Delete what is kept.

        Raises:
            EdgespecError: it cannot be deleted.
        """
        self._shelf.forget()

    def _sound(self, texts: Any) -> bool:
        """Whether these are tokens: no file may put a token before the model that it does not know."""
        return all(
            isinstance(text, list) and all(type(token) is int and 0 <= token < self._vocab for token in text)
            for text in texts
        )

    def _newest(self, texts: list[list[int]]) -> list[list[int]]:
        """The newest of `texts` that fit; of one that alone does not, its end."""
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
    """Delete what is kept for any vocabulary; how many files that were.

    Raises:
        EdgespecError: one cannot be deleted.
    """
    return forget_kind(_KIND)
