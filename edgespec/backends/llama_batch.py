"""The tokens of one pass as a llama_batch over NumPy arrays, filled without loops over ctypes values."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np

from .tree_layout import Branches


class Batch:
    """A batch of at most `size` tokens, each in at most `sequences` sequences of the cache; sequence 0 by default."""

    def __init__(self, low: Any, size: int, sequences: int) -> None:
        self.size = size
        self._token = np.zeros(size, np.int32)
        self._pos = np.zeros(size, np.int32)
        self._wanted = np.zeros(size, np.int8)
        self._counts = np.ones(size, np.int32)
        self._ids = np.zeros((size, sequences), np.int32)
        self._numbers = np.arange(sequences, dtype=np.int32)
        rows = self._ids.ctypes.data + np.arange(size, dtype=np.uintp) * self._ids.strides[0]
        self._rows = rows.astype(np.uintp)

        def pointer(array: Any, kind: Any) -> Any:
            return ctypes.cast(array.ctypes.data, ctypes.POINTER(kind))

        self.native = low.llama_batch(
            n_tokens=0,
            token=pointer(self._token, low.llama_token),
            embd=None,
            pos=pointer(self._pos, low.llama_pos),
            n_seq_id=pointer(self._counts, ctypes.c_int32),
            seq_id=pointer(self._rows, ctypes.POINTER(low.llama_seq_id)),
            logits=pointer(self._wanted, ctypes.c_int8),
        )

    def chain(self, tokens: Sequence[int], start: int, *, width: int = 0, silent: int = 0, logits: bool) -> None:
        """Fill in a chain of `tokens` from position `start`, padded with zeros to `width` tokens. The first `silent` of
        them have no logits."""
        n = len(tokens)
        width = max(n, width)
        self._token[:n] = tokens
        self._token[n:width] = 0
        self._pos[:width] = np.arange(start, start + width)
        self._wanted[:silent] = 0
        self._wanted[silent:width] = logits
        self.native.n_tokens = width

    def tree(self, tokens: Sequence[int], start: int, branches: Branches) -> None:
        """Fill in a tree of `tokens` from position `start`, each in the sequences of its leaves, with logits."""
        n = len(tokens)
        self._token[:n] = tokens
        self._pos[:n] = np.add(branches.depths, start)
        self._wanted[:n] = 1
        for node, below in enumerate(branches.below):
            self._counts[node] = len(below)
            self._ids[node, : len(below)] = self._numbers[below.start : below.stop]
        self.native.n_tokens = n
