"""Passes of a compiled graph with paged attention."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import EngineError, Interrupted
from ..types import Floats
from . import Interrupt
from .openvino_cache import PagedCache
from .openvino_package import bindings, reason
from .openvino_weights import SharedWeights

WIDEST = 512  #: the most tokens of one pass


@dataclass(frozen=True, slots=True)
class CompiledGraph:
    """A graph of `openvino_graph`, compiled for a device.

    Args:
        weights: what the compiled model refers to.
        trees: whether passes over trees are right: windows count rows of the cache, which branches share.
        hidden: the layers whose hidden states it returns.
    """

    compiled: Any
    weights: SharedWeights
    trees: bool
    hidden: tuple[int, ...] = ()


class PagedPasses:
    """Passes over one KV cache. Inputs are buffers that are filled in place, with views of each width."""

    def __init__(self, graph: CompiledGraph, cache: PagedCache, interrupt: Interrupt) -> None:
        self.cache = cache
        self._layers = graph.hidden
        self._interrupt = interrupt
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
        self._request.cancel()

    def chain(self, tokens: Sequence[int], held: int, *, width: int = 0, logits: bool) -> None:
        """A pass over a chain of `tokens` from position `held`, padded with zeros to `width`.

        Raises:
            Interrupted, EngineError: the rows of the cache before `held` are unchanged.
        """
        n = max(len(tokens), width)
        self._ids[0, :n] = 0
        self._ids[0, : len(tokens)] = tokens
        self._positions[0, :n] = np.arange(held, held + n)
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
        bias = (mask.astype(np.uint8).reshape(-1), np.array([0, n * n], np.int32))
        self._run(n, held, [bindings().Tensor(array, shared_memory=True) for array in bias], rows=n)

    def logits(self, n: int) -> Floats:
        """The first `n` rows of logits of the last pass, float32 [n, vocab]; a view."""
        rows: Floats = self._request.get_tensor("logits").data[0, :n]
        return rows

    def hidden(self, n: int) -> Mapping[int, Floats]:
        """The hidden states by layer of the last pass, float16 for models in half precision, else float32 [n, hidden];
        views."""
        return {layer: self._request.get_tensor(f"hidden.{layer}").data[0, :n] for layer in self._layers}

    def _run(self, n: int, held: int, mask: Sequence[Any], rows: int) -> None:
        self._past[0], self._begins[1], self._total[()] = held, n, held + n
        self._set("input_ids", self._view("input_ids", self._ids, n))
        self._set("position_ids", self._view("position_ids", self._positions, n))
        self._set("out_idx", self._view("out_idx", self._rows, rows))
        for name, tensor in zip(("qq_bias", "qq_bias_begins"), mask, strict=True):
            self._set(name, tensor)
        if self._interrupt.is_set:
            raise Interrupted
        try:
            self._request.start_async()
            if self._interrupt.is_set:  # set before the pass began: then `stop` ended nothing
                self._request.cancel()
            self._request.wait()
            if self._interrupt.is_set:
                raise Interrupted
        except Interrupted:
            raise
        except Exception as error:  # RuntimeError of pybind, of any cause
            if self._interrupt.is_set:
                raise Interrupted from None
            raise EngineError(f"OpenVINO could not decode {n} tokens after {held} ({reason(error)})") from error

    def _view(self, name: str, array: npt.NDArray[Any], n: int) -> Any:
        """The first `n` columns of an input's buffer."""
        if (found := self._views.get((name, n))) is None:
            found = self._views[name, n] = bindings().Tensor(array[..., :n], shared_memory=True)
        return found

    def _set(self, name: str, tensor: Any) -> None:
        if self._bound.get(name) is not tensor:
            self._request.set_tensor(name, tensor)
            self._bound[name] = tensor
