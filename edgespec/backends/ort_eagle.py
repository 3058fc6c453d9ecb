"""A head of EAGLE-1 or 2 over a session of its target, run by ONNX Runtime (Li et al. 2024, arXiv 2401.15077).

The rows that it reads are the target's final states, and its own rows are such states as it expects them. The pair of
token p and state p - 1 is at position p - 1, so the first token has none. converters/eagle.py describes the graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..errors import EngineError, Interrupted
from ..types import Floats
from . import Interrupt
from .head_pairs import CHUNK, HeadLimits, PairedHead
from .onnx_head import DescribedHead
from .ort_cache import OrtCache
from .ort_package import CPU, bindings


class EagleHead(PairedHead):
    """The head. It is a `Listener` of its target's session.

    Args:
        session: of onnxruntime.
        context: the most tokens of text.
    """

    shift = 1

    def __init__(self, session: Any, described: DescribedHead, context: int, interrupt: Interrupt) -> None:
        super().__init__(HeadLimits(described.target_tokens, context, described.width, CHUNK))
        self._session, self._interrupt = session, interrupt
        self._description = described.summary
        self._cache = OrtCache(described, context, np.float32, CPU)
        self._row = np.full(self.vocab, -np.inf, np.float32)
        self._named = np.zeros(0, np.int64)  # the tokens of which `_row` has logits
        self._own: Floats = np.zeros(described.width, np.float32)

    def close(self) -> None:
        self._session = None

    def _pass(self, tokens: Sequence[int], start: int, rows: Floats, *, logits: bool) -> None:
        if self._interrupt.is_set:
            raise Interrupted
        first, n = start - self.shift, len(tokens)
        total = first + n
        binding, value = self._session.io_binding(), bindings().OrtValue.ortvalue_from_numpy
        self._cache.bind(binding)
        for name, array in (
            ("input_ids", np.array([tokens], np.int64)),
            ("hidden", rows[None]),
            ("positions", np.arange(first, total, dtype=np.float32)),
            ("seqlens_k", np.array([total - 1], np.int32)),
            ("total_sequence_length", np.array([total], np.int32)),
        ):
            binding.bind_ortvalue_input(name, value(array))
        for name in ("tokens", "logs", "state"):
            binding.bind_output(name)
        try:
            self._session.run_with_iobinding(binding)
        except Exception as error:  # exceptions of pybind, which have no common base class
            reason = " ".join(str(error).split())
            raise EngineError(f"ONNX Runtime could not compute the {self._description}: {reason}") from error
        tokens_found, logs, state = (each.numpy() for each in binding.get_outputs()[-3:])
        self._own = state[0]
        if logits:
            self._spread(tokens_found[0], logs[0])

    def _spread(self, tokens: Any, logs: Floats) -> None:
        """Put the logits of the likeliest tokens into the row."""
        self._row[self._named] = -np.inf
        known = (tokens >= 0) & (tokens < self.vocab) & np.isfinite(logs)
        self._named = tokens[known]
        self._row[self._named] = logs[known]

    def _logits(self) -> Floats:
        return self._row

    def _own_row(self) -> Floats:
        return np.array(self._own)

    def _remove(self, length: int) -> None:
        """Nothing to do: a pass states how much of the cache is valid."""
