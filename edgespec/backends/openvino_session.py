"""One sequence of a model in OpenVINO: chains and trees."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from . import Interrupt
from .exactness import Exactness
from .openvino_cache import PagedCache
from .openvino_passes import SPARE, WIDEST, CompiledGraph, PagedPasses
from .padded_session import PaddedSession
from .tree_layout import Branches

_CHUNK = 256  # tokens of a pass of a prefill: buffers of activations stay as wide as the widest pass


class OpenvinoSession(PaddedSession):
    """One sequence of a model in OpenVINO.

    Args:
        vocabulary: the width of a row of logits.
        positions: the most tokens of text that the model has positions for.
        context: the most tokens of text; fewer if the model has fewer positions.
        exactness: how passes are padded. There are no trees with padding: branches lie between each other in the
            cache, which changes the order of sums.
        rows: layers of the model, and numbers of a hidden row.
        with_rows: the graph with further outputs of hidden states, by name.
    """

    _passes: PagedPasses

    def __init__(  # noqa: PLR0913 - options by name
        self,
        graph: CompiledGraph,
        interrupt: Interrupt,
        context: int,
        *,
        vocabulary: int,
        positions: int,
        identity: str,
        exactness: Exactness,
        rows: tuple[int, int],
        with_rows: Callable[[tuple[str, ...]], CompiledGraph],
    ) -> None:
        super().__init__(vocabulary, context, positions, exactness)
        self.identity = identity
        self.widest = exactness.rounded_down(WIDEST)
        self.layers, self.layer_width = rows
        self._interrupt, self._with_rows = interrupt, with_rows
        self._names: tuple[str, ...] = ()
        self._take(graph)

    def _take(self, graph: CompiledGraph) -> None:
        """Use this graph, with an empty cache."""
        rows = self.context + max(SPARE, self._exactness.most_padding)
        cache = PagedCache(graph.compiled, graph.widths, rows, graph.device)
        self.can_tree = graph.trees and cache.movable and not self._exactness.width
        self.leaves = WIDEST if self.can_tree else 0
        self._passes = PagedPasses(graph, cache, self._interrupt)

    def _request(self, names: tuple[str, ...]) -> None:
        names = tuple(dict.fromkeys((*self._names, *names)))
        graph = self._with_rows(names)
        del self._passes  # its cache goes before there is another
        self._take(graph)
        self._names = names

    def _room(self) -> int:
        return self._exactness.rounded_down(_CHUNK)

    def _pass_tree(self, tokens: Sequence[int], branches: Branches) -> None:
        self._decoded = 0
        self._passes.tree(tokens, len(self._held), branches.depths, branches.ancestry())
        self._decoded = len(tokens)

    def _keep(self, branches: Branches, path: Sequence[int]) -> None:  # noqa: ARG002 - the path suffices
        held = len(self._held)
        self._passes.cache.move([held + node for node in path], held)
