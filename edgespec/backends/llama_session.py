"""One sequence of a GGUF model: chains, trees, and passes of constant width."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import EngineError, Interrupted, RollbackError
from ..types import Floats
from . import Interrupt
from .llama_batch import Batch
from .llama_cache import LlamaCache
from .sequence import SequenceCache
from .tree_layout import Branches

_ABORTED = 2


@dataclass(frozen=True, slots=True)
class Opened:
    """A llama_context and its limits.

    Args:
        low: llama_cpp's low-level module.
        handle: the llama_context.
        length: the most tokens of text.
        chunk: the most tokens of one pass.
        leaves: sequences for the branches of trees; 0 if trees are not possible.
        exact: the width in tokens that every decode is padded to; 0 for no padding.
    """

    low: Any
    handle: Any
    length: int
    chunk: int
    leaves: int
    exact: int


class LlamaSession(SequenceCache):
    """One sequence of a GGUF model."""

    def __init__(self, opened: Opened, interrupt: Interrupt, *, vocab: int, identity: str, recurs: bool) -> None:
        super().__init__(vocab, opened.length)
        self.identity = identity
        self.reach = 0 if recurs else None
        self.leaves = opened.leaves
        self.can_tree = opened.leaves > 1
        self.widest = opened.exact or opened.chunk
        self._low, self._context, self._exact = opened.low, opened.handle, opened.exact
        self._interrupt = interrupt
        self._cache = LlamaCache(self._low, self._context, opened.leaves)
        self._chain = Batch(self._low, opened.chunk, 1)
        self._tree = Batch(self._low, opened.chunk, max(1, opened.leaves))
        self._rows: dict[int, Any] = {}

    def _free(self) -> None:
        self._low.llama_free(self._context)
        self._context = None

    def _chunk(self) -> int:
        return self._chain.size

    def _pass_chain(self, tokens: Sequence[int], *, logits: bool) -> None:
        """A pass with logits is padded to the width `exact`."""
        start, width = len(self._held), self._exact if logits else 0
        self._chain.chain(tokens, start, width=width, logits=logits)
        self._pass(self._chain)
        if len(tokens) < width:
            self._cache.cut(start + len(tokens))

    def _pass_tree(self, tokens: Sequence[int], branches: Branches) -> None:
        self._cache.give(len(self._held), branches.leaves)
        self._tree.tree(tokens, len(self._held), branches)
        self._pass(self._tree)

    def _keep(self, branches: Branches, path: Sequence[int]) -> None:
        self._cache.keep(branches, path, len(self._held))

    def _cut(self, length: int) -> None:
        if not self._cache.cut(length):
            raise RollbackError(f"llama.cpp could not roll back from {len(self._held)} to {length} tokens")

    def _pass(self, batch: Batch) -> None:
        """Run `batch`. If it fails, the cache is unchanged."""
        if self._interrupt.is_set:
            raise Interrupted
        status = self._low.llama_decode(self._context, batch.native)
        if status == 0:
            return
        start = len(self._held)
        self._cache.cut(start)
        if status == _ABORTED:
            raise Interrupted
        raise EngineError(f"llama.cpp could not decode {batch.native.n_tokens} tokens after {start} (status {status})")

    def _logits(self, n: int) -> Floats:
        """The logits, float32 [n, vocab], in llama.cpp's own buffer."""
        first = ctypes.addressof(self._low.llama_get_logits(self._context).contents)
        if (kind := self._rows.get(n)) is None:
            kind = self._rows[n] = ctypes.c_float * (n * self.vocab)
        buffer: Any = kind.from_address(first)
        return np.frombuffer(buffer, dtype=np.float32).reshape(n, self.vocab)
