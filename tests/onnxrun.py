"""A converted folder run by ONNX Runtime with nothing between: the graph's own contract, seen by tests."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime

from edgespec.backends.ort_package import UNSATURATED

Array = npt.NDArray[Any]


def metadata(folder: Path) -> dict[str, str]:
    """The folder's metadata_props."""
    model = onnx.load_model(folder / "model.onnx", load_external_data=False)
    return {entry.key: entry.value for entry in model.metadata_props}


class Onnx:
    """One sequence: what was fed before is `length` rows of the buffers."""

    def __init__(self, folder: Path, capacity: int = 256) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        options.add_session_config_entry(*UNSATURATED)
        self._session = onnxruntime.InferenceSession(
            str(folder / "model.onnx"), options, providers=["CPUExecutionProvider"]
        )
        inputs = {entry.name: entry for entry in self._session.get_inputs()}
        self.type = np.dtype(np.float16 if "16" in inputs["attention_bias"].type else np.float32)
        self._past = {
            name: np.zeros((1, entry.shape[1], capacity, entry.shape[3]), self.type)
            for name, entry in inputs.items()
            if name.startswith("past.") and name.endswith((".key", ".value"))
        }
        told = metadata(folder)
        self._before = int(told.get("edgespec.kernel", "1")) - 1
        #: What convolutions see of all tokens and of those before the first, the gates of all tokens, and the state
        #: before the last ones that were fed, which are computed from it again.
        self._rows = {
            name: np.zeros((1, self._before, entry.shape[2]), self.type)
            for name, entry in inputs.items()
            if name.endswith(".rows")
        }
        self._gates = {
            name: np.zeros((1, 0, entry.shape[2]), np.float32)
            for name, entry in inputs.items()
            if name.endswith(".gates")
        }
        self._states = {
            name: np.zeros(entry.shape, np.float32) for name, entry in inputs.items() if name.endswith(".state")
        }
        self._fed = 0  # tokens before the last ones that were fed
        self.outputs = [entry.name for entry in self._session.get_outputs()]
        self.length = 0
        self.hidden: dict[str, Array] = {}

    def feed(self, tokens: Sequence[int], tree: Sequence[int] = (), rows: Sequence[int] | None = None) -> Array:
        """The logits after each of `tokens`, or after those of index `rows`; `tree` gives parents, -1 the past."""
        n, total = len(tokens), self.length + len(tokens)
        parents = list(tree) or [i - 1 for i in range(n)]
        sees = np.zeros((n, n), bool)
        for i, parent in enumerate(parents):
            sees[i, i] = True
            if parent >= 0:
                sees[i] |= sees[parent]
        bias = np.zeros((1, 1, n, total), self.type)
        bias[0, 0, :, self.length :][~sees] = -10000
        found = self._session.run(
            self.outputs,
            {
                "input_ids": np.array([tokens], np.int64),
                "position_ids": (self.length + sees.sum(1) - 1)[None].astype(np.int64),
                "seqlens_k": np.array([total - 1], np.int32),
                "total_sequence_length": np.array([total], np.int32),
                "attention_bias": bias,
                "out_idx": np.arange(n) if rows is None else np.array(rows, np.int64),
                **self._past,
                **self._recurrent(),
            },
        )
        named = dict(zip(self.outputs, found, strict=True))
        self._past = {name: named[name.replace("past", "present")] for name in self._past}
        for kept, before in ((self._rows, self._before), (self._gates, 0)):
            for name, seen in kept.items():
                own = named[name.replace("past", "present")]
                kept[name] = np.concatenate([seen[:, : self.length + before], own], axis=1)
        self._states = {name: named[f"present.{name.split('.')[1]}.start"] for name in self._states}
        self._fed = self.length
        self.hidden = {name: value[0] for name, value in named.items() if name.startswith("hidden.")}
        self.length = total
        return np.asarray(named["logits"][0])

    def _recurrent(self) -> dict[str, Array]:
        """The inputs of recurrent layers."""
        if not self.length:
            self._states, self._fed = {name: np.zeros_like(state) for name, state in self._states.items()}, 0
        start = self._fed if self._states else self.length
        rows = {name: seen[:, start : self.length + self._before] for name, seen in self._rows.items()}
        return {**rows, **{name: seen[:, start : self.length] for name, seen in self._gates.items()}, **self._states}
