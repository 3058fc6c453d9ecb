"""One sequence of an ONNX model: chains, trees, and passes of padded width."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..errors import ContextOverflow
from . import MOST_OWED, Interrupt
from .exactness import Exactness
from .ort_cache import OrtCache
from .ort_passes import WIDEST, LoadedGraph, Passes
from .ort_recurrent import RecurrentRows, widest
from .padded_session import PaddedSession
from .tree_layout import Branches


class OrtSession(PaddedSession):
    """One sequence of an ONNX model.

    Args:
        context: the most tokens of text; fewer if the model has fewer positions.
        exactness: how passes are padded. There are no trees with padding.
        hidden: layers, from 0, whose hidden states `decode` keeps.
    """

    _passes: Passes

    def __init__(
        self,
        graph: LoadedGraph,
        interrupt: Interrupt,
        context: int,
        *,
        identity: str,
        exactness: Exactness,
        hidden: Sequence[int] = (),
    ) -> None:
        model = graph.model
        super().__init__(model.vocabulary, context, model.context, exactness)
        self.identity = identity
        self._most = widest(model, WIDEST)  # tokens of one pass
        self._recurrent: RecurrentRows | None = None
        if model.recurrence is not None:
            self._recurrent = RecurrentRows(model.recurrence, graph.dtype, self._most)
        self.widest = exactness.rounded_down(self._most) - (MOST_OWED if self._recurrent else 0)
        self._longest = model.context
        self.layers, self.layer_width = model.layers, model.hidden
        self._owes = self._recurrent is not None
        # With room for padding, or for the token before a tree at the beginning of the text.
        cache = OrtCache(model, self.context + max(1, exactness.most_padding), graph.dtype, graph.provider)
        self.can_tree = cache.movable and not exactness.width and self._recurrent is None
        self.leaves = WIDEST if self.can_tree else 0
        self._lowest = np.finfo(graph.dtype).min
        self._dtype = graph.dtype
        self._passes = Passes(graph, cache, self._recurrent, interrupt, hidden)
        self._first = 0  # the row of the last tree's first node

    def _room(self) -> int:
        return self._exactness.rounded_down(min(self._most, self._passes.widest(len(self._held))))

    def _request(self, names: tuple[str, ...]) -> None:
        self._passes.request(names)

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

    def _keep(self, branches: Branches, path: Sequence[int]) -> None:  # noqa: ARG002 - the path suffices
        self._passes.cache.move([self._first + node for node in path], len(self._held))
