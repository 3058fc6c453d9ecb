"""One sequence of a GGUF model: chains, trees, passes of constant width, states that are gone back in, and a head."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import EngineError, Interrupted
from ..types import Floats
from . import MOST_OWED, Interrupt
from .llama_batch import Batch
from .llama_cache import LlamaCache
from .llama_head import LlamaHead, private_functions, read_rows
from .llama_recurrent import Recurrent
from .llama_windowed import Windowed
from .recurrent_state import Copies
from .sequence import SequenceCache
from .tree_layout import Branches

_ABORTED = 2
# The next prompt of a chat differs near the end of the last one, where templates open the answer. The last token of a
# prompt is not prefilled.
_TAIL = 4


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
        copies: those of a recurrent state; None for a model without one.
        poll: a native function that says whether to abort a pass; None where there is none.
        width: numbers of a hidden row.
        window: tokens of the sliding window of layers whose cache does not hold all tokens; 0 where all are held.
        cells: tokens in the cache of these layers.
    """

    low: Any
    handle: Any
    length: int
    chunk: int
    leaves: int
    exact: int
    copies: Copies | None
    poll: Any
    width: int
    window: int = 0
    cells: int = 0


class LlamaSession(SequenceCache):
    """One sequence of a GGUF model."""

    def __init__(self, opened: Opened, interrupt: Interrupt, *, vocab: int, identity: str) -> None:
        super().__init__(vocab, opened.length)
        self.identity = identity
        self.leaves = opened.leaves
        self.can_tree = opened.leaves > 1
        self._low, self._context, self.exact = opened.low, opened.handle, opened.exact
        self.interrupt, self._poll = interrupt, opened.poll
        self.handle = opened.handle
        self.row_width = opened.width
        self._aborts = False
        copies = opened.copies
        self._recurs = copies is not None
        self._cache: LlamaCache | Recurrent
        if copies is None:
            if opened.window:
                self._cache = Windowed(self._low, self._context, opened.window, opened.cells)
            else:
                self._cache = LlamaCache(self._low, self._context, opened.leaves)
            self.widest = opened.exact or opened.chunk
        else:
            self._cache = Recurrent(self._low, self._context, copies.snapshots, copies.saved)
            self.widest = opened.chunk - MOST_OWED
            self.reach, self.replays = copies.snapshots or None, not copies.snapshots
        self._head: LlamaHead | None = None
        self._of_tree: tuple[Sequence[int], Floats] | None = None  # tokens of the last tree, and their hidden rows
        self._save_at = -1  # the length at which the next state is saved
        self._chain = Batch(self._low, opened.chunk, 1)
        self._tree = Batch(self._low, opened.chunk, max(1, opened.leaves))
        self._rows: dict[int, Any] = {}

    def give_rows(self, head: LlamaHead) -> None:
        """Let `head` follow this session, which holds no tokens yet."""
        private_functions().llama_set_embeddings_nextn(self._context, True, False)
        self._head = head
        # A row that the head lacks is computed again with the next pass, see `_cut`.
        self.widest = min(self.widest, self._chain.size - MOST_OWED)

    def _free(self) -> None:
        self._low.llama_free(self._context)
        self._context = None

    def prefill(self, tokens: Sequence[int]) -> None:
        end = len(self._held) + len(tokens) - _TAIL
        self._save_at = end if len(tokens) > _TAIL and self._cache.saves(end) else -1
        super().prefill(tokens)

    def _chunk(self) -> int:
        room, until = self._chain.size - self.owed, self._save_at - len(self._held)
        return min(room, until) if until > 0 else room

    def _recompute(self, most: int) -> None:
        # Only passes of a recurrent state, or over which a head follows, begin with owed tokens in each round: `widest`
        # leaves room for them there.
        while self.owed > (most if self._recurs or self._head is not None else 0):
            start = self._begin()
            tokens = self._held[start : start + self._chain.size]
            self._chain.chain(tokens, start, logits=False)
            self._pass(self._chain, judged=False)
            self._follow(start, tokens, judged=False)
            self._computed = start + len(tokens)
            self._cache.passed(self._computed, len(tokens))

    def _mark(self) -> None:
        self._cache.mark()

    def _pass_chain(self, tokens: Sequence[int], *, logits: bool) -> None:
        """A pass with logits is padded to the width `exact`."""
        start, width = self._begin(), self.exact if logits else 0
        chain = (*self._held[start:], *tokens)
        end = start + len(chain)
        self._chain.chain(chain, start, width=width, silent=len(chain) - len(tokens), logits=logits)
        self._pass(self._chain, judged=logits)
        self._cache.passed(end, len(chain))
        if len(chain) < width:
            self._cache.cut(end)
        self._follow(start, chain, judged=logits)
        if end == self._save_at:
            self._cache.save(end)
            if self._head is not None:
                self._head.keep(end)

    def _pass_tree(self, tokens: Sequence[int], branches: Branches) -> None:
        cache = self._branching()
        cache.give(len(self._held), branches.leaves)
        self._tree.tree(tokens, len(self._held), branches)
        self._pass(self._tree, judged=True)
        if self._head is not None:
            self._of_tree = list(tokens), self._hidden(len(tokens)).copy()

    def _keep(self, branches: Branches, path: Sequence[int]) -> None:
        self._branching().keep(branches, path, len(self._held))
        if self._head is not None and self._of_tree is not None:
            tokens, rows = self._of_tree
            self._head.follow(len(self._held), [tokens[node] for node in path], rows[list(path)], judged=True)

    def _branching(self) -> LlamaCache:
        if not isinstance(self._cache, LlamaCache):
            raise EngineError("a recurrent state has no branches; ask can_tree before giving this session a tree")
        return self._cache

    def _cut(self, length: int) -> int:
        return self._cache.cut(length if self._head is None else self._head.cut(length))

    def _begin(self) -> int:
        """Before a pass: how many of the tokens held it need not compute."""
        held = len(self._held)
        return self._cache.begin(held if self._head is None else self._head.resumed(held))

    def _follow(self, start: int, tokens: Sequence[int], *, judged: bool) -> None:
        """Give the head the rows of the last pass, which was over `tokens` from position `start` on."""
        if self._head is not None:
            self._head.follow(start, tokens, self._hidden(len(tokens)), judged=judged)

    def _hidden(self, n: int) -> Floats:
        """The hidden rows of the first `n` tokens of the last pass, valid until the next one."""
        return read_rows(private_functions().llama_get_embeddings_nextn(self._context), n, self.row_width)

    def _pass(self, batch: Batch, *, judged: bool) -> None:
        """Run `batch`. If it fails, the cache holds at most what it held before.

        Args:
            judged: whether tokens of it may be rejected, rather than a part of a prefill.
        """
        if self.interrupt.is_set:
            raise Interrupted
        self._set_aborts(not judged or self._cache.aborts)
        status = self._low.llama_decode(self._context, batch.native)
        if status == 0:
            return
        start = len(self._held)
        self._computed = self._cache.failed(start)
        if status == _ABORTED:
            raise Interrupted
        raise EngineError(f"llama.cpp could not decode {batch.native.n_tokens} tokens after {start} (status {status})")

    def _set_aborts(self, aborts: bool) -> None:
        """Let the interrupt abort the next passes, or not."""
        if aborts != self._aborts and self._poll is not None:
            poll: Any = self._poll if aborts else None
            callback = ctypes.cast(poll, self._low.ggml_abort_callback)
            self._low.llama_set_abort_callback(self._context, callback, self.interrupt.address)
            self._aborts = aborts

    def _logits(self, n: int) -> Floats:
        """The logits, float32 [n, vocab], in llama.cpp's own buffer."""
        first = ctypes.addressof(self._low.llama_get_logits(self._context).contents)
        if (kind := self._rows.get(n)) is None:
            kind = self._rows[n] = ctypes.c_float * (n * self.vocab)
        buffer: Any = kind.from_address(first)
        return np.frombuffer(buffer, dtype=np.float32).reshape(n, self.vocab)
