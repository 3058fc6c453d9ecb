"""One sequence of an ONNX model: chains, trees, and passes of padded width."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ..errors import ContextOverflow
from ..types import Floats
from . import Interrupt
from .ort_cache import OrtCache
from .ort_passes import WIDEST, LoadedGraph, Passes
from .sequence import SequenceCache
from .tree_layout import Branches


class OrtSession(SequenceCache):
    """One sequence of an ONNX model.

    Args:
        context: the most tokens of text; fewer if the model has fewer positions.
        exact: every pass is padded to a multiple of this number of tokens; 0 for no padding.
        hidden: layers, from 0, whose hidden states `decode` keeps.
    """

    def __init__(
        self,
        graph: LoadedGraph,
        interrupt: Interrupt,
        context: int,
        *,
        identity: str,
        exact: int,
        hidden: Sequence[int] = (),
    ) -> None:
        model = graph.model
        super().__init__(model.vocabulary, max(1, min(context, model.context - max(0, exact - 1))))
        self.identity = identity
        self.widest = WIDEST // exact * exact if exact else WIDEST
        self._longest = model.context
        self._exact = exact
        # With room for padding, or for the token before a tree at the beginning of the text.
        cache = OrtCache(model, self.context + max(1, exact - 1), graph.dtype, graph.provider)
        self.can_tree = cache.movable and not exact
        self.leaves = WIDEST if self.can_tree else 0
        self._lowest = np.finfo(graph.dtype).min
        self._dtype = graph.dtype
        self._passes = Passes(graph, cache, interrupt, hidden)
        self._decoded = 0  # tokens of the last pass with logits, unless one without followed
        self._first = 0  # the row of the last tree's first node

    @property
    def hidden(self) -> Mapping[int, Floats]:
        """The hidden states of the last decode by layer: the residual stream after the layer, float16 or float32
        [n, hidden], valid until the next call. Only for the layers requested when the session was opened."""
        return self._passes.hidden(self._decoded) if self._decoded else {}

    def _free(self) -> None:
        self._decoded = 0
        del self._passes  # it refers to the weights and to the cache

    def _chunk(self) -> int:
        step = self._exact or 1
        return self._passes.widest(len(self._held)) // step * step

    def _pass_chain(self, tokens: Sequence[int], *, logits: bool) -> None:
        """The pass is padded to a multiple of `exact`."""
        self._decoded = 0
        padding = -len(tokens) % self._exact if self._exact else 0
        self._passes.chain(tokens, len(self._held), width=len(tokens) + padding, logits=logits)
        self._decoded = len(tokens) if logits else 0

    def _pass_tree(self, tokens: Sequence[int], branches: Branches) -> None:
        passes, first = self._passes, len(self._held)
        self._decoded = 0
        if not first:
            # GroupQueryAttention treats a pass over an empty cache as a prompt and numbers its tokens itself. So a row
            # that no node attends to is put before them.
            if len(tokens) >= self._longest:
                raise ContextOverflow(f"a tree of {len(tokens)} tokens does not fit the context of {self.context}")
            passes.chain(tokens[:1], 0, logits=False)
            first = 1
        bias = np.zeros((len(tokens), first + len(tokens)), self._dtype)
        bias[:, first:][~branches.ancestry()] = self._lowest
        if first > len(self._held):
            bias[:, :first] = self._lowest
        passes.tree(tokens, [len(self._held) + depth for depth in branches.depths], bias)
        self._first, self._decoded = first, len(tokens)

    def _logits(self, n: int) -> Floats:
        return self._passes.logits(n)

    def _keep(self, branches: Branches, path: Sequence[int]) -> None:  # noqa: ARG002 - the path suffices
        self._passes.cache.move([self._first + node for node in path], len(self._held))

    def _cut(self, length: int) -> int:
        """Rows beyond the length are overwritten by later passes."""
        return length
