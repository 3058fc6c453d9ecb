"""One sequence of a GGUF model: chains, trees, passes of constant width, states that are gone back in, and a head."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import EngineError, Interrupted, OptionError
from ..types import Floats
from . import MOST_OWED, Interrupt
from .llama_batch import Batch
from .llama_cache import LlamaCache
from .llama_head import LlamaHead, private_functions, read_rows
from .llama_recurrent import Recurrent
from .llama_rows import NamedRows, check_layers, publishes, read_layer, request_layer
from .llama_texts import KeptTexts
from .llama_windowed import Windowed
from .recurrent_state import Copies
from .sequence import SequenceCache
from .tap import FINAL, RowSource, Wanted
from .tree_layout import Branches

_ABORTED = 2
# The next prompt of a chat differs near the end of the last one, where templates open the answer. The last token of a
# prompt is not prefilled.
_TAIL = 4
_LONG = 16  # tokens of a prefill from which on it takes the threads of prompts, see `Opened.threads`
# ggml's CUDA backend launches kernels one by one in the first pass of another shape, records a CUDA graph in the
# second, and starts that from the third on (ggml-cuda.cu, `ggml_backend_cuda_graph_compute`, llama-cpp-python 0.3.36).
# On an H200 plain steps of an 8B in Q4_0 took 3.0 ms in a row, and 5.8 ms, the median, between passes of other widths.
_RECORDED = 2
_ALL_LOGITS = 64  # tokens of a pass of a prefill with the logits of all tokens, with which states come


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
        width: numbers of a hidden row after the last layer.
        architecture: that of the model.
        layers: how many it has.
        layer_width: numbers of a hidden row between layers.
        reopen: opens such a context anew, with a callback for the nodes of its graphs.
        on_gpu: whether a GPU computes layers.
        window: tokens of the sliding window of layers whose cache does not hold all tokens; 0 where all are held.
        cells: tokens in the cache of these layers.
        threads: those of passes, and those of prompts.
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
    architecture: str
    layers: int
    layer_width: int
    reopen: Callable[[Any], Opened]
    on_gpu: bool = False
    window: int = 0
    cells: int = 0
    threads: tuple[int, int] = (0, 0)


class LlamaSession(SequenceCache):
    """One sequence of a GGUF model."""

    def __init__(self, opened: Opened, interrupt: Interrupt, *, vocab: int, identity: str) -> None:
        super().__init__(vocab, opened.length)
        self.identity = identity
        self._low, self.exact = opened.low, opened.exact
        self.interrupt, self._poll = interrupt, opened.poll
        self.row_width = opened.width
        self._named: NamedRows | None = None  # reads rows during passes
        self._states: Wanted | None = None  # of which tokens final states are needed
        self._silent = 0  # tokens of the last pass with logits before those that were asked for
        self._save_at = -1  # the length at which the next state is saved
        self._rows: dict[int, Any] = {}
        self._take(opened)

    def _take(self, opened: Opened) -> None:
        """Use this context, which is empty."""
        self._opened = opened
        self.layer_width, self.layers = opened.layer_width, opened.layers
        self.settling = _RECORDED if opened.on_gpu else 0
        self.handle = self._context = opened.handle
        self.leaves = opened.leaves
        self.can_tree = opened.leaves > 1
        self._aborts = self._gives_states = False
        copies = opened.copies
        self._texts: KeptTexts | None = None  # where the cells of a text are all that a pass reads
        self._cache: LlamaCache | Recurrent
        if copies is None:
            if opened.window:
                self._cache = Windowed(self._low, self._context, opened.window, opened.cells)
            else:
                self._cache = LlamaCache(self._low, self._context, opened.leaves)
                self._texts = KeptTexts(self._low, self._context, self._cache)
            self.widest = opened.exact or opened.chunk
        else:
            self._cache = Recurrent(self._low, self._context, copies.snapshots, copies.saved)
            self.widest = opened.chunk - MOST_OWED
            self.reach, self.replays = copies.snapshots or None, not copies.snapshots
        self._owes = copies is not None
        self._chain = Batch(self._low, opened.chunk, 1)
        self._tree = Batch(self._low, opened.chunk, max(1, opened.leaves))

    def give_rows(self, head: LlamaHead) -> None:
        """Let `head` follow this session, which holds no tokens yet."""
        private_functions().llama_set_embeddings_nextn(self._context, True, False)
        self._add_follower(self._hidden, head)

    def _row_source(self, layers: tuple[int, ...], wanted: Wanted) -> RowSource:
        if self.exact:
            raise OptionError(f"exact is {self.exact}, but hidden rows need passes of other widths; leave exact out")
        inside = [layer for layer in layers if layer != FINAL]
        check_layers(inside, self._opened.layers, self._opened.architecture)
        if FINAL in layers and self._states is not Wanted.ALL:
            self._states = wanted
        if inside and publishes(self._opened.architecture):
            for layer in inside:
                request_layer(self._context, layer)
        elif inside:
            self._name_rows(inside)
        sources = [self._layer_source(layer) for layer in layers]
        return lambda n: sources[0](n) if len(sources) == 1 else np.concatenate([rows(n) for rows in sources], axis=1)

    def _layer_source(self, layer: int) -> RowSource:
        if layer == FINAL:
            return lambda n: read_rows(self._low.llama_get_embeddings(self._context), n, self.row_width)
        if self._named is not None and not publishes(self._opened.architecture):
            named = self._named
            return lambda n: named.row(layer, n)
        return lambda n: read_rows(read_layer(self._context, layer), n, self._opened.layer_width)

    def _name_rows(self, layers: Sequence[int]) -> None:
        """Read the inputs of `layers` during passes, of which the context must be told when it is opened."""
        if self._named is None:
            if any(isinstance(follower, LlamaHead) for _, follower in self._followers):
                raise EngineError("rows of these layers must be asked for before a head reads this context")
            self._named = NamedRows(self._low, self._opened.layer_width)
            self._free()
            self._take(self._opened.reopen(self._named.callback))
            if self._followers and not self._owes:
                self._leave_room()
        self._named.want(layers)
        self.decode((0,))
        try:
            for layer in layers:
                self._named.row(layer, 1)
        finally:
            self.rollback(0)

    def _free(self) -> None:
        self._low.llama_free(self._context)
        self._context = self._texts = None

    def kept(self, tokens: Sequence[int]) -> int:
        return self._texts.common(tokens) if self._texts is not None else 0

    def resume(self, tokens: Sequence[int]) -> None:
        if self._texts is None or self._followers:  # rows come with passes, and are not kept
            return
        self.rollback(len(self._held))
        if (text := self._texts.exchange(self._held[: self._computed], tokens)) is not None:
            self._held, self._computed, self._last = [*text], len(text), len(text)

    def prefill(self, tokens: Sequence[int]) -> None:
        end = len(self._held) + len(tokens) - _TAIL
        self._save_at = end if len(tokens) > _TAIL and self._cache.saves(end) else -1
        steps, prompts = self._opened.threads
        many = prompts != steps and len(tokens) >= _LONG
        if many:
            self._low.llama_set_n_threads(self._context, prompts, prompts)
        try:
            super().prefill(tokens)
        finally:
            if many:
                self._low.llama_set_n_threads(self._context, steps, steps)
        # A graphics card may still compute it: the time of the next pass, of which prices are made, would have it, too.
        self._low.llama_synchronize(self._context)

    def _chunk(self) -> int:
        room, until = self._room(self._computed) - self.owed, self._save_at - len(self._held)
        return min(room, until) if until > 0 else room

    def _room(self, start: int) -> int:
        """The most tokens of a pass of a prefill from position `start` on."""
        if self._states is Wanted.ALL:
            return min(self._chain.size, _ALL_LOGITS)
        left = self._end - start
        if self._states is Wanted.LAST and _ALL_LOGITS < left <= self._chain.size:
            return left - 1  # the last token has a pass of its own, so that only its logits are computed
        return self._chain.size

    def _with_states(self, end: int) -> bool:
        """Whether a pass up to position `end` gives final states, for which llama.cpp computes the logits of all of its
        tokens."""
        return self._states is Wanted.ALL or (self._states is Wanted.LAST and end == self._end)

    def _recompute(self, most: int) -> None:
        # Only passes of a recurrent state, or whose rows are followed, begin with owed tokens in each round: `widest`
        # leaves room for them there.
        while self.owed > (most if self._owes else 0):
            start = self._begin()
            tokens = self._held[start : start + self._room(start)]
            end = start + len(tokens)
            self._chain.chain(tokens, start, logits=self._with_states(end))
            self._pass(self._chain, judged=False, states=self._with_states(end))
            self._follow(start, tokens, judged=False)
            self._computed = end
            self._cache.passed(self._computed, len(tokens))

    def _mark(self) -> None:
        self._cache.mark()

    def _pass_chain(self, tokens: Sequence[int], *, logits: bool) -> None:
        """A pass with logits is padded to the width `exact`."""
        start, width = self._begin(), self.exact if logits else 0
        chain = (*self._held[start:], *tokens)
        end, owed = start + len(chain), len(chain) - len(tokens)
        states = self._with_states(end)
        self._silent, silent = (owed, 0) if states else (0, owed)
        self._chain.chain(chain, start, width=width, silent=silent, logits=logits or states)
        self._pass(self._chain, judged=logits, states=states)
        self._cache.passed(end, len(chain))
        if len(chain) < width:
            self._cache.cut(end)
        self._follow(start, chain, judged=logits)
        if end == self._save_at:
            self._cache.save(end)
            for _, follower in self._followers:
                follower.keep(end)

    def _pass_tree(self, tokens: Sequence[int], branches: Branches) -> None:
        cache = self._branching()
        cache.give(len(self._held), branches.leaves)
        self._tree.tree(tokens, len(self._held), branches)
        self._silent = 0
        self._pass(self._tree, judged=True, states=self._states is not None)

    def _keep(self, branches: Branches, path: Sequence[int]) -> None:
        self._branching().keep(branches, path, len(self._held))

    def _branching(self) -> LlamaCache:
        if not isinstance(self._cache, LlamaCache):
            raise EngineError("a recurrent state has no branches; ask can_tree before giving this session a tree")
        return self._cache

    def _cut(self, length: int) -> int:
        return self._cache.cut(length)

    def _begin(self) -> int:
        """Before a pass: how many of the tokens held it need not compute."""
        return self._cache.begin(self._resumed())

    def _hidden(self, n: int) -> Floats:
        """The hidden rows of the first `n` tokens of the last pass, valid until the next one."""
        return read_rows(private_functions().llama_get_embeddings_nextn(self._context), n, self.row_width)

    def _pass(self, batch: Batch, *, judged: bool, states: bool) -> None:
        """Run `batch`. If it fails, the cache holds at most what it held before.

        Args:
            judged: whether tokens of it may be rejected, rather than a part of a prefill.
            states: whether its final states are needed; then all of its tokens have logits.
        """
        if self.interrupt.is_set:
            raise Interrupted
        self._set_aborts(not judged or self._cache.aborts)
        if states != self._gives_states:
            self._low.llama_set_embeddings(self._context, states)
            self._gives_states = states
        if self._named is not None:
            self._named.begin()
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
        buffer: Any = kind.from_address(first + ctypes.sizeof(ctypes.c_float) * self._silent * self.vocab)
        return np.frombuffer(buffer, dtype=np.float32).reshape(n, self.vocab)
