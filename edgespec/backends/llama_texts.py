"""Texts that a llama_context held before, with their KV cells, in the memory of the CPU.

Conversations that take turns, or a chat between two tasks of other kinds, would else be computed again in each turn.
llama-server keeps prompts so, too (`--cache-ram`).
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from . import common_prefix
from .llama_cache import LlamaCache

_TEXT = 0  # the sequence
_BYTES = 128 << 20  # as of the rows that wait for a head (`head_pairs.py`); 2 kB a token of 15 million parameters
# Tokens that are worth a copy: with 15 million parameters on two cores 32 take 5 ms to compute, 0.1 to keep and load.
_WORTH = 32


class KeptTexts:
    """Texts of sequence 0 of a llama_context.

    Args:
        cache: of that context, whose cells hold text up to any length.
        most: bytes of all texts together; the one that was used least recently makes room.
    """

    def __init__(self, low: Any, context: Any, cache: LlamaCache, most: int = _BYTES) -> None:
        self._low, self._context, self._cache, self._most = low, context, cache, most
        self._kept: list[_Kept] = []

    def common(self, tokens: Sequence[int]) -> int:
        """How many tokens at the beginning of `tokens` a kept text has."""
        return max((common_prefix(each.tokens, tokens) for each in self._kept), default=0)

    def exchange(self, held: Sequence[int], tokens: Sequence[int]) -> Sequence[int] | None:
        """Keep the text `held` if much of it is not in `tokens`, and load a kept text that has more of them.

        Args:
            held: what the context holds.

        Returns:
            The text that the context holds now; None if that is `held`. Empty if llama.cpp could not load it.
        """
        same = common_prefix(held, tokens)
        found = max(self._kept, key=lambda each: common_prefix(each.tokens, tokens), default=None)
        common = common_prefix(found.tokens, tokens) if found is not None else 0
        if found is not None and common - same >= _WORTH:
            self._kept.remove(found)
        else:
            found = None
        if len(held) - same >= _WORTH:
            self._keep(held)
        if found is None:
            return None
        if len(found.tokens) - common >= _WORTH:  # what `tokens` does not go on from would be lost
            self._add(found)
        return found.tokens if self._load(found) else ()

    def _keep(self, held: Sequence[int]) -> None:
        """Keep the text that the context holds, in place of an earlier state of it."""
        self._kept = [each for each in self._kept if len(each.tokens) - common_prefix(each.tokens, held) >= _WORTH]
        size = int(self._low.llama_state_seq_get_size(self._context, _TEXT))
        if size > self._most:
            return
        kept = _Kept(tuple(held), size, ctypes.create_string_buffer(size))
        if self._low.llama_state_seq_get_data(self._context, kept.pointer, size, _TEXT) == size:
            self._add(kept)

    def _add(self, kept: _Kept) -> None:
        """Make room for a text, and keep it."""
        while sum(each.size for each in self._kept) + kept.size > self._most:
            self._kept.pop(0)
        self._kept.append(kept)

    def _load(self, kept: _Kept) -> bool:
        """Let the context hold a text in place of its own; False if llama.cpp cannot, and it then holds nothing."""
        self._cache.cut(0)
        if not self._low.llama_state_seq_set_data(self._context, kept.pointer, kept.size, _TEXT):
            self._cache.cut(0)
            return False
        self._cache.passed(len(kept.tokens), 0)
        return True


@dataclass(frozen=True, slots=True, eq=False)
class _Kept:
    """The cells of `tokens`, `size` bytes."""

    tokens: tuple[int, ...]
    size: int
    buffer: Any

    @property
    def pointer(self) -> Any:
        """To the bytes, as llama.cpp's functions take it."""
        return ctypes.cast(self.buffer, ctypes.POINTER(ctypes.c_uint8))
