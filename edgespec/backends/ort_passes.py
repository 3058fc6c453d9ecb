"""Passes of an ONNX graph. Inputs are in buffers that are filled in place, and bound once for each width."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import EngineError, Interrupted, OptionError
from ..types import Floats
from . import Interrupt
from .onnx_file import Described
from .ort_cache import OrtCache
from .ort_package import CPU, bindings
from .ort_recurrent import RecurrentRows

WIDEST = 512  #: the most tokens of one pass
_QUIET = 4  # log level "fatal": failures raise exceptions
_MOST_BIAS = 1 << 23  # elements of the attention bias of one pass: the longer the cache, the narrower the pass


def widest_pass(held: int) -> int:
    """The most tokens of a pass after `held` others that keep the attention bias small."""
    return max(32, min(WIDEST, _MOST_BIAS // (held + WIDEST)))


@dataclass(frozen=True, slots=True)
class LoadedGraph:
    """A loaded model: the onnxruntime session, the metadata of the file, and the short name of the provider."""

    session: Any
    model: Described
    provider: str

    @property
    def dtype(self) -> npt.DTypeLike:
        """The dtype of activations, cache and bias."""
        return np.float16 if self.model.half else np.float32


class Passes:
    """Passes over one KV cache.

    Args:
        rows: what the layers without keys and values know of earlier tokens; None where all layers have them.
        hidden: layers whose hidden states are returned with the logits: the residual stream after the layer.
    """

    def __init__(
        self,
        graph: LoadedGraph,
        cache: OrtCache,
        rows: RecurrentRows | None,
        interrupt: Interrupt,
        hidden: Sequence[int] = (),
    ) -> None:
        self._graph = graph
        self.cache, self._recurrent = cache, rows
        self._interrupt = interrupt
        self._layers = tuple(hidden)
        self._names = {f"hidden.{layer}" for layer in hidden}  # outputs of hidden states that passes give
        self._options = bindings().RunOptions()
        self._options.log_severity_level = _QUIET
        # No capture of GPU graphs. This is the default, but if it is not stated, each pass raises an exception inside.
        self._options.add_run_config_entry("gpu_graph_id", "-1")
        self._ids = np.zeros(WIDEST, np.int64)
        self._positions = np.zeros(WIDEST, np.int64)
        self._all, self._wanted = np.arange(WIDEST), np.arange(WIDEST)
        self._silent = 0  # tokens of the last pass with logits that have none
        self._last, self._total = np.zeros(1, np.int32), np.zeros(1, np.int32)
        self._none = np.zeros(
            0, graph.dtype
        )  # a bias of zeros; it is never written to, so its pages are never allocated
        self._rows: Floats = np.zeros((0, graph.model.vocabulary), np.float32)
        self._hidden: dict[str, npt.NDArray[Any]] = {}
        self._bound: dict[tuple[int, int], Any] = {}
        interrupt.register(self)

    def stop(self) -> None:
        """End the pass under way, between two nodes of its graph."""
        self._options.terminate = True

    def widest(self, held: int) -> int:
        """See `widest_pass`."""
        return widest_pass(held)

    def chain(self, tokens: Sequence[int], held: int, *, width: int = 0, silent: int = 0, logits: bool) -> None:
        """A pass over a chain of `tokens` from position `held`, padded with zeros to `width`. The first `silent` of
        them have no logits.

        Raises:
            Interrupted, EngineError: the rows of the cache before `held` are unchanged.
        """
        n = max(len(tokens), width)
        self._ids[:n] = 0
        self._ids[: len(tokens)] = tokens
        self._positions[:n] = self._all[:n] + held
        size = n * (held + n)
        if len(self._none) < size:
            self._none = np.zeros(2 * size, self._graph.dtype)
        self._run(n, held + n, self._none[:size], range(silent, n) if logits else range(0))

    def tree(self, tokens: Sequence[int], positions: Sequence[int], bias: npt.NDArray[Any]) -> None:
        """A pass over a tree of n `tokens` at `positions`.

        Args:
            bias: the attention bias [n, total], of the dtype of the graph; its last columns are the rows of the tokens.

        Raises:
            as `chain`.
        """
        n, total = bias.shape
        self._ids[:n] = tokens
        self._positions[:n] = positions
        self._run(n, total, bias, range(n))

    def logits(self, n: int) -> Floats:
        """The first `n` rows of logits of the last pass with logits, float32 [n, vocab]; a view."""
        return self._rows[:n]

    def hidden(self, n: int) -> Mapping[int, Floats]:
        """The hidden states by layer of the last pass with logits, float16 for models in half precision,
        else float32 [n, hidden]; views."""
        start = self._silent
        return {layer: self._hidden[f"hidden.{layer}"][start : start + n] for layer in self._layers}

    def rows(self, name: str, n: int) -> npt.NDArray[Any]:
        """The output `name` for the first `n` tokens of the last pass, [n, hidden]; a view."""
        return self._hidden[name][:n]

    def request(self, names: Iterable[str]) -> None:
        """Let all passes from now on give these outputs.

        Raises:
            OptionError: the graph does not have them.
        """
        known = {output.name for output in self._graph.session.get_outputs()}
        if missing := sorted(set(names) - known):
            raise OptionError(
                f"this model has no output {missing[0]!r} of hidden states, for an older edgespec converted it; "
                "convert the checkpoint again"
            )
        self._names |= set(names)
        self._bound.clear()
        self._hidden = {}

    def _run(self, n: int, total: int, bias: npt.NDArray[Any], rows: range) -> None:
        self._last[0], self._total[0] = total - 1, total
        self._wanted[: max(1, len(rows))] = rows or 0
        self._silent = rows.start
        binding = self._binding(n, max(len(rows), self._graph.model.least_rows))
        if self._recurrent is not None:
            self._recurrent.bind(binding, total - n, n)
        value = bindings().OrtValue.ortvalue_from_numpy(bias.reshape(1, 1, n, total))
        binding.bind_ortvalue_input("attention_bias", value)
        self._options.terminate = False
        if self._interrupt.is_set:  # tested after `terminate` is reset: if it is set later, `stop` ends this pass
            raise Interrupted
        try:
            self._graph.session.run_with_iobinding(binding, self._options)
        except Exception as error:  # exceptions of pybind, which have no common base class
            if self._interrupt.is_set:
                raise Interrupted from None
            raise EngineError(f"ONNX Runtime could not decode {n} tokens after {total - n} ({error})") from error

    def _binding(self, n: int, rows: int) -> Any:
        """A binding for passes over `n` tokens with `rows` rows of logits."""
        if len(self._rows) < rows:
            self._bound.clear()
            self._rows = np.zeros((_room(rows), self._graph.model.vocabulary), np.float32)
        if self._names and (not self._hidden or len(next(iter(self._hidden.values()))) < n):
            self._bound.clear()
            shape = _room(n), self._graph.model.hidden
            self._hidden = {name: np.zeros(shape, self._graph.dtype) for name in self._names}
        if (found := self._bound.get((n, rows))) is None or self._graph.provider != CPU:
            found = self._bound[n, rows] = self._bind(n, rows)
        return found

    def _bind(self, n: int, rows: int) -> Any:
        """Bind all buffers. On devices other than the CPU this copies them, so it is repeated for each pass."""
        value = bindings().OrtValue.ortvalue_from_numpy
        binding = self._graph.session.io_binding()
        self.cache.bind(binding)
        for name, array in (
            ("input_ids", self._ids[:n].reshape(1, n)),
            ("position_ids", self._positions[:n].reshape(1, n)),
            ("seqlens_k", self._last),
            ("total_sequence_length", self._total),
            ("out_idx", self._wanted[:rows]),
        ):
            binding.bind_ortvalue_input(name, value(array))
        binding.bind_ortvalue_output("logits", value(self._rows[:rows].reshape(1, rows, self._rows.shape[1])))
        for name, array in self._hidden.items():
            binding.bind_ortvalue_output(name, value(array[:n].reshape(1, n, -1)))
        return binding


def _room(rows: int) -> int:
    """How many rows to allocate where `rows` are needed."""
    return min(WIDEST, max(16, 2 * rows))
