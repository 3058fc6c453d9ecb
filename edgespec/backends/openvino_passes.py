"""Passes of a compiled graph with paged attention."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import EngineError, Interrupted
from ..types import Floats
from . import Interrupt
from .openvino_cache import PagedCache
from .openvino_device import ComputeDevice
from .openvino_package import bindings, reason
from .openvino_weights import SharedWeights

WIDEST = 512  #: the most tokens of one pass
SPARE = 4  #: rows of the cache after those of the context, for the pass that follows one that was stopped


class Shapes:
    """The shapes that operators of a compiled graph may have, which all its passes share.

    An operator of OpenVINO's CPU plugin prepares its output and its kernel if its inputs have other shapes than in its
    last *execution*. A pass prepares operators ahead of their execution. So one that is stopped leaves operators that
    are prepared for its shape, but count as prepared for that of an earlier pass: the next pass with that shape fails,
    or computes in buffers of the wrong size. A pass whose shape differs from both prepares every operator anew.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()  #: of passes: the plugin computes one at a time
        self._possible: set[tuple[int, int]] = set()

    def begin(self, tokens: int, rows: int) -> None:
        """A pass over so many tokens, with logits of so many rows, begins."""
        self._possible.add((tokens, rows))

    def end(self, tokens: int, rows: int) -> None:
        """It was executed to its end."""
        self._possible = {(tokens, rows)}

    def is_safe(self, tokens: int, rows: int) -> bool:
        """Whether a pass of this shape prepares the operators that have another."""
        return len(self._possible) < 2 or not any(n == tokens or m == rows for n, m in self._possible)

    def other(self) -> tuple[int, int]:
        """The smallest shape that differs from all possible ones, in tokens and in rows."""
        tokens, rows = ({shape[i] for shape in self._possible} for i in (0, 1))
        return (
            next(n for n in range(1, len(tokens) + 2) if n not in tokens),
            next(n for n in range(1, len(rows) + 2) if n not in rows),
        )


@dataclass(frozen=True, slots=True)
class CompiledGraph:
    """A graph of `openvino_graph`, compiled for a device. The graph itself would keep a copy of some weights.

    Args:
        weights: what the compiled model refers to.
        widths: the numbers of one token in each input of the cache.
        trees: whether it takes trees.
        hidden: the layers whose hidden states it returns, or the names of such outputs.
    """

    compiled: Any
    device: ComputeDevice
    weights: SharedWeights
    widths: Mapping[str, int]
    trees: bool
    hidden: tuple[int | str, ...] = ()
    shapes: Shapes = field(default_factory=Shapes)


class PagedPasses:
    """Passes over one KV cache. Inputs are buffers that are filled in place, with views of each width."""

    def __init__(self, graph: CompiledGraph, cache: PagedCache, interrupt: Interrupt) -> None:
        self.cache = cache
        self._layers = tuple(layer for layer in graph.hidden if isinstance(layer, int))
        self._silent = 0  # tokens of the last pass whose logits are not wanted
        self._shapes = graph.shapes
        self._masks = "qq_bias" in {port.get_any_name() for port in graph.compiled.inputs}
        self._interrupt = interrupt
        self._stoppable = False
        self._request = graph.compiled.create_infer_request()
        self._ids = np.zeros((1, WIDEST), np.int64)
        self._positions = np.zeros((1, WIDEST), np.int64)
        self._rows = np.arange(WIDEST)
        self._past, self._begins = np.zeros(1, np.int32), np.zeros(2, np.int32)
        self._total = np.zeros((), np.int32)
        self._bound: dict[str, Any] = {}
        self._views: dict[tuple[str, int], Any] = {}
        blocks = np.arange(cache.blocks, dtype=np.int32)
        fixed = {
            "past_lens": self._past,
            "subsequence_begins": self._begins,
            "block_indices": blocks,
            "block_indices_begins": np.array([0, len(blocks)], np.int32),
            "max_context_len": self._total,
        }
        for name, array in fixed.items():
            self._set(name, bindings().Tensor(array, shared_memory=True))
        for name, tensor in cache.tensors.items():
            self._set(name, tensor)
        self._none = [bindings().Tensor(np.zeros(0, dtype)) for dtype in (np.uint8, np.int32)]
        interrupt.register(self)

    def stop(self) -> None:
        """End the pass under way, between two operators of its graph."""
        if self._stoppable:
            self._request.cancel()

    def chain(self, tokens: Sequence[int], held: int, *, width: int = 0, silent: int = 0, logits: bool) -> None:
        """A pass over a chain of `tokens` from position `held`, padded with zeros to `width`. The logits of the first
        `silent` of them are not wanted.

        Raises:
            Interrupted, EngineError: the rows of the cache before `held` are unchanged.
        """
        n = max(len(tokens), width)
        self._ids[0, :n] = 0
        self._ids[0, : len(tokens)] = tokens
        self._positions[0, :n] = np.arange(held, held + n)
        self._silent = silent
        self._run(n, held, self._none, rows=n if logits else 1)

    def tree(self, tokens: Sequence[int], held: int, depths: Sequence[int], mask: npt.NDArray[np.bool_]) -> None:
        """A pass over a tree of n `tokens`, whose rows follow `held` others.

        Args:
            depths: of each token, from 0.
            mask: [n, n]: the tokens of the pass that each token (row) attends to.

        Raises:
            as `chain`.
        """
        n = len(tokens)
        self._ids[0, :n] = tokens
        self._positions[0, :n] = depths
        self._positions[0, :n] += held
        self._silent = 0
        bias = (mask.astype(np.uint8).reshape(-1), np.array([0, n * n], np.int32))
        self._run(n, held, [bindings().Tensor(array, shared_memory=True) for array in bias], rows=n)

    def logits(self, n: int) -> Floats:
        """The first `n` wanted rows of logits of the last pass, float32 [n, vocab]; a view."""
        rows: Floats = self._request.get_tensor("logits").data[0, self._silent : self._silent + n]
        return rows

    def rows(self, name: str, n: int) -> npt.NDArray[Any]:
        """The output `name` of hidden states for the first `n` tokens of the last pass, [n, hidden]; a view."""
        rows: npt.NDArray[Any] = self._request.get_tensor(name).data[0, :n]
        return rows

    def hidden(self, n: int) -> Mapping[int, Floats]:
        """The hidden states by layer of the last pass, float16 for models in half precision, else float32 [n, hidden];
        views."""
        start = self._silent
        return {layer: self.rows(f"hidden.{layer}", start + n)[start:] for layer in self._layers}

    def _run(self, n: int, held: int, mask: Sequence[Any], rows: int) -> None:
        with self._shapes.lock:
            if self._interrupt.is_set:
                raise Interrupted
            if not self._shapes.is_safe(n, rows):
                self._prepare_anew(held)
            self._bind(n, held, mask, rows)
            self._stoppable = True
            try:
                self._execute(n, held, rows)
            finally:
                self._stoppable = False

    def _prepare_anew(self, held: int) -> None:
        """A short pass after which every operator is prepared for the same shape; its rows of the cache are invalid."""
        tokens, rows = self._shapes.other()
        ids, places, wanted = np.zeros((1, tokens), np.int64), np.arange(tokens)[None], np.zeros(rows, np.int64)
        self._bind(tokens, held, self._none, rows)
        for name, array in (("input_ids", ids), ("position_ids", places), ("out_idx", wanted)):
            self._set(name, bindings().Tensor(array, shared_memory=True))
        self._execute(tokens, held, rows)

    def _bind(self, n: int, held: int, mask: Sequence[Any], rows: int) -> None:
        """Set the inputs of a pass over the first `n` tokens of the buffers."""
        self._past[0], self._begins[1], self._total[()] = held, n, held + n
        self._set("input_ids", self._view("input_ids", self._ids, n))
        self._set("position_ids", self._view("position_ids", self._positions, n))
        self._set("out_idx", self._view("out_idx", self._rows, rows))
        if self._masks:
            for name, tensor in zip(("qq_bias", "qq_bias_begins"), mask, strict=True):
                self._set(name, tensor)

    def _execute(self, n: int, held: int, rows: int) -> None:
        self._shapes.begin(n, rows)
        try:
            self._request.start_async()
            if self._stoppable and self._interrupt.is_set:  # set before the pass began: then `stop` ended nothing
                self._request.cancel()
            self._request.wait()
        except Exception as error:  # RuntimeError of pybind, of any cause
            if self._stoppable and self._interrupt.is_set:
                raise Interrupted from None
            raise EngineError(f"OpenVINO could not decode {n} tokens after {held} ({reason(error)})") from error
        self._shapes.end(n, rows)
        if self._interrupt.is_set:
            raise Interrupted

    def _view(self, name: str, array: npt.NDArray[Any], n: int) -> Any:
        """The first `n` columns of an input's buffer."""
        if (found := self._views.get((name, n))) is None:
            found = self._views[name, n] = bindings().Tensor(array[..., :n], shared_memory=True)
        return found

    def _set(self, name: str, tensor: Any) -> None:
        if self._bound.get(name) is not tensor:
            self._request.set_tensor(name, tensor)
            self._bound[name] = tensor
