"""One sequence of a model in OpenVINO: chains and trees."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..types import Floats
from . import Interrupt
from .openvino_cache import PagedCache
from .openvino_passes import WIDEST, CompiledGraph, PagedPasses
from .sequence import SequenceCache
from .tree_layout import Branches

_CHUNK = 256  # tokens of a pass of a prefill: buffers of activations stay as wide as the widest pass


class OpenvinoSession(SequenceCache):
    """One sequence of a model in OpenVINO.

    Args:
        vocabulary: the width of a row of logits.
        positions: the most tokens of text that the model has positions for.
        context: the most tokens of text; fewer if the model has fewer positions.
        exact: every pass is padded to a multiple of this number of tokens; 0 for no padding. There are no trees then:
            branches lie between each other in the cache, which changes the order of sums.
    """

    def __init__(
        self,
        graph: CompiledGraph,
        interrupt: Interrupt,
        context: int,
        *,
        vocabulary: int,
        positions: int,
        identity: str,
        exact: int,
    ) -> None:
        super().__init__(vocabulary, max(1, min(context, positions - max(0, exact - 1))))
        self.identity = identity
        self.widest = WIDEST // exact * exact if exact else WIDEST
        self.can_tree = graph.trees and not exact
        self.leaves = WIDEST if self.can_tree else 0
        self._exact = exact
        cache = PagedCache(graph.compiled, self.context + max(0, exact - 1))
        self._passes = PagedPasses(graph, cache, interrupt)
        self._decoded = 0  # tokens of the last pass with logits, unless one without followed

    @property
    def hidden(self) -> Mapping[int, Floats]:
        """The hidden states of the last decode by layer: the residual stream after the layer, float32 [n, hidden],
        valid until the next call. Only for the layers requested when the session was opened."""
        return self._passes.hidden(self._decoded) if self._decoded else {}

    def _free(self) -> None:
        self._decoded = 0
        del self._passes  # it refers to the weights and to the cache

    def _chunk(self) -> int:
        return min(_CHUNK, self.widest) if not self._exact else max(self._exact, _CHUNK // self._exact * self._exact)

    def _pass_chain(self, tokens: Sequence[int], *, logits: bool) -> None:
        self._decoded = 0
        padding = -len(tokens) % self._exact if self._exact else 0
        self._passes.chain(tokens, len(self._held), width=len(tokens) + padding, logits=logits)
        self._decoded = len(tokens) if logits else 0

    def _pass_tree(self, tokens: Sequence[int], branches: Branches) -> None:
        self._decoded = 0
        self._passes.tree(tokens, len(self._held), branches.depths, branches.ancestry())
        self._decoded = len(tokens)

    def _logits(self, n: int) -> Floats:
        return self._passes.logits(n)

    def _keep(self, branches: Branches, path: Sequence[int]) -> None:  # noqa: ARG002 - the path suffices
        held = len(self._held)
        self._passes.cache.move([held + node for node in path], held)

    def _cut(self, length: int) -> int:
        """Rows beyond the length are overwritten by later passes."""
        return length
