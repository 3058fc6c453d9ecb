"""An EAGLE-3 head, run by llama.cpp over a session of any engine that gives hidden rows (arXiv 2503.01840).

An encoder, one matrix, makes one row of a token's rows of three layers of the target. Like a head for multi-token
prediction (`LlamaHead`), its one layer reads a token and the row of the token before, and gives logits and a row with
which it goes on by itself. But the pair of token p and row p - 1 is at position p - 1, so the first token has none.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..types import Floats
from . import Interrupt
from .llama_batch import Batch
from .llama_head import LlamaHead, OpenedHead, private_functions, read_rows


@dataclass(frozen=True, slots=True)
class OpenedEagle3:
    """An EAGLE-3 head and its encoder's width.

    Args:
        features: numbers of the target's rows of a token.
    """

    head: OpenedHead
    features: int


class Eagle3Head(LlamaHead):
    """The head. It is a `Listener` of its target's session."""

    shift = 1

    def __init__(self, opened: OpenedEagle3, interrupt: Interrupt) -> None:
        super().__init__(opened.head, interrupt)
        self._encoding = Batch(self._low, opened.head.chunk, 1)
        self._encoding.native.token = None

    def _read(self, rows: Floats) -> Floats | None:
        """The encoder's rows, valid until the next pass; None if it failed."""
        n, rows = len(rows), np.ascontiguousarray(rows, np.float32)
        self._drop_chain(0)
        # Nothing is written to the cache, but llama.cpp demands positions that follow those in it.
        self._encoding.chain([0] * n, max(0, self._fed - self.shift), logits=True)
        native: Any = self._encoding.native
        native.embd = ctypes.cast(rows.ctypes.data, ctypes.POINTER(ctypes.c_float))
        native.token = None
        if self._interrupt.is_set or self._low.llama_encode(self._handle, native):
            return None
        return read_rows(private_functions().llama_get_embeddings_nextn(self._handle), n, self._rows.shape[1])


class Relay:
    """Passes what a session tells on to a head, which is opened after the session was told to give rows."""

    def __init__(self) -> None:
        self.head: Eagle3Head | None = None

    def heard(self, start: int, tokens: Sequence[int], rows: Floats) -> None:
        if self.head is not None:
            self.head.heard(start, tokens, rows)

    def forget(self, length: int) -> None:
        if self.head is not None:
            self.head.forget(length)
