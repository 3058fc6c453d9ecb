"""The keys and values of one sequence, in place where ONNX Runtime writes them.

Each array is past and present of its layer at once (GroupQueryAttention's shared buffer): a pass writes the rows of
its own tokens and no others, so what lies beyond the length is rubbish, and forgetting it costs nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from .ort_file import Described
from .ort_package import CPU, bindings


class OrtCache:
    """Room for `capacity` tokens of a model, in its memory on `device`.

    On the CPU it is NumPy's, which takes no memory before it is written to.
    """

    def __init__(self, model: Described, capacity: int, dtype: npt.DTypeLike, device: str) -> None:
        shape = (1, model.kv_heads, capacity, model.head_dim)
        names = [f"{layer}.{kind}" for layer in range(model.layers) for kind in ("key", "value")]
        values = bindings().OrtValue
        #: Whether rows can be moved.
        self.movable = device == CPU
        self._arrays: list[npt.NDArray[Any]] = []
        self._values = {}
        for name in names:
            if self.movable:
                self._arrays.append(np.zeros(shape, dtype))
                self._values[name] = values.ortvalue_from_numpy(self._arrays[-1])
            else:
                self._values[name] = values.ortvalue_from_shape_and_type(shape, dtype, device, 0)

    def bind(self, binding: Any) -> None:
        """Let passes of `binding` read it and write it."""
        for name, value in self._values.items():
            binding.bind_ortvalue_input(f"past.{name}", value)
            binding.bind_ortvalue_output(f"present.{name}", value)

    def move(self, rows: Sequence[int], start: int) -> None:
        """Put `rows`, in this order, at `start`."""
        for array in self._arrays:
            array[:, :, start : start + len(rows)] = array[:, :, rows]
