"""One sequence of a GGUF model: chains, trees, and passes of constant width."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import ClosedError, ContextOverflow, EngineError, Interrupted, RollbackError
from ..types import Floats
from . import Interrupt
from .llama_batch import Batch
from .llama_cache import Cache
from .tree_layout import Branches, is_chain, kept_length

_ABORTED = 2


@dataclass(frozen=True, slots=True)
class Opened:
    """A llama_context, and what it was opened for.

    Args:
        low: llama_cpp's low-level module.
        handle: the llama_context.
        length: tokens of text it may hold.
        chunk: tokens that one pass may hold.
        leaves: sequences for the branches of trees; 0 where it takes none.
        exact: the width that every decode is padded to; 0 for its own.
    """

    low: Any
    handle: Any
    length: int
    chunk: int
    leaves: int
    exact: int


class LlamaSession:
    """One sequence of a GGUF model."""

    def __init__(self, opened: Opened, interrupt: Interrupt, *, vocab: int, identity: str, can_rollback: bool) -> None:
        self.vocab = vocab
        self.context = opened.length
        self.identity = identity
        self.can_rollback = can_rollback
        self.leaves = opened.leaves
        self.can_tree = opened.leaves > 1
        self.widest = opened.exact or opened.chunk
        self._low, self._context, self._exact = opened.low, opened.handle, opened.exact
        self._interrupt = interrupt
        self._cache = Cache(self._low, self._context, opened.leaves)
        self._chain = Batch(self._low, opened.chunk, 1)
        self._tree = Batch(self._low, opened.chunk, opened.leaves) if self.can_tree else None
        self._held: list[int] = []
        self._last = 0  # where the last decode began
        self._pending: tuple[Branches, Sequence[int]] | None = None  # a tree in the cache that is not settled yet
        self._rows: dict[int, Any] = {}

    @property
    def tokens(self) -> Sequence[int]:
        return self._held

    def prefill(self, tokens: Sequence[int]) -> None:
        start = len(self._held)
        self._check_open()
        self._check_room(len(tokens))
        self._settle()
        try:
            for at in range(0, len(tokens), self._chain.size):
                self._append(tokens[at : at + self._chain.size], logits=False)
        except (EngineError, Interrupted):
            self.rollback(start)
            raise
        self._last = len(self._held)

    def decode(self, tokens: Sequence[int], tree: Sequence[int] | None = None) -> Floats:
        self._check_open()
        if len(tokens) > self.widest:
            raise EngineError(f"one decode takes at most {self.widest} tokens, not {len(tokens)}; prefill the rest")
        self._check_room(len(tokens))
        self._settle()
        self._last = len(self._held)
        if tree is None or (is_chain(tree) and len(tree) == len(tokens)):
            self._append(tokens, logits=True)
        else:
            self._branch(tokens, tree)
        return self._logits(len(tokens))

    def rollback(self, length: int, keep: Sequence[int] = ()) -> None:
        self._check_open()
        if self._pending is not None:
            self._keep(length, keep, *self._pending)
            return
        length = kept_length(len(self._held), self._last, length, keep)
        if length == len(self._held):
            return
        if length and not self.can_rollback:
            raise RollbackError("this model's recurrent state cannot go back; only plain decoding from scratch can")
        self._cut(length)

    def close(self) -> None:
        if self._context:
            self._low.llama_free(self._context)
            self._context = None

    def _append(self, tokens: Sequence[int], *, logits: bool) -> None:
        """One pass over a chain; one with logits is as wide as exactness wants."""
        start, width = len(self._held), self._exact if logits else 0
        self._chain.chain(tokens, start, width=width, logits=logits)
        self._pass(self._chain)
        self._held.extend(tokens)
        if len(tokens) < width:
            self._cache.cut(len(self._held))

    def _branch(self, tokens: Sequence[int], tree: Sequence[int]) -> None:
        """One pass over a tree; its nodes wait beside the text until a rollback says which of them are kept."""
        if self._tree is None:
            raise EngineError("this llama.cpp session decodes chains only; ask can_tree before giving it a tree")
        if len(tree) != len(tokens):
            raise EngineError(f"a tree of {len(tokens)} tokens has {len(tree)} parents; give each token one")
        branches = Branches(tree)
        if branches.leaves > self.leaves:
            raise EngineError(
                f"a tree of {branches.leaves} leaves; this session takes {self.leaves} (its `leaves`): draft fewer"
            )
        self._cache.give(len(self._held), branches.leaves)
        self._tree.tree(tokens, len(self._held), branches)
        self._pass(self._tree)
        self._pending = branches, list(tokens)

    def _settle(self) -> None:
        """Forget a tree that no rollback asked anything of."""
        if self._pending is not None:
            self.rollback(len(self._held))

    def _keep(self, length: int, keep: Sequence[int], branches: Branches, tokens: Sequence[int]) -> None:
        branches.check_kept(self._last, length, keep)
        if keep:
            self._cache.keep(branches, keep, length)
            self._held.extend(tokens[node] for node in keep)
        else:
            self._cut(length)
        self._pending = None
        self._last = len(self._held)

    def _cut(self, length: int) -> None:
        if not self._cache.cut(length):
            raise RollbackError(f"llama.cpp could not go back from {len(self._held)} to {length} tokens")
        del self._held[length:]

    def _check_open(self) -> None:
        if self._context is None:
            raise ClosedError("this session is closed; open another")

    def _check_room(self, n: int) -> None:
        if len(self._held) + n > self.context:
            raise ContextOverflow(
                f"{len(self._held)} + {n} tokens do not fit the context of {self.context}; a larger --ctx holds more"
            )

    def _pass(self, batch: Batch) -> None:
        """Run `batch`; where that fails, the cache is as it was."""
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
        """llama.cpp's own buffer, [n, vocab], not copied."""
        first = ctypes.addressof(self._low.llama_get_logits(self._context).contents)
        if (kind := self._rows.get(n)) is None:
            kind = self._rows[n] = ctypes.c_float * (n * self.vocab)
        buffer: Any = kind.from_address(first)
        return np.frombuffer(buffer, dtype=np.float32).reshape(n, self.vocab)
