"""The KV cache of one sequence, in buffers that ONNX Runtime writes in place.

Each array is both past and present of its layer (GroupQueryAttention's shared buffer): a pass writes only the rows of
its own tokens. Rows beyond the length are invalid, so a rollback costs nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from .ort_package import CPU, bindings


class CacheShape(Protocol):
    """What determines the shape of a cache."""

    @property
    def kv_heads(self) -> int:
        """Heads of keys and values."""
        ...

    @property
    def head_dim(self) -> int:
        """Numbers of each."""
        ...

    @property
    def attention(self) -> Sequence[int]:
        """The layers with keys and values."""
        ...


class OrtCache:
    """Keys and values of at most `capacity` tokens, in the memory of `device`.

    On the CPU they are NumPy arrays, for which the system allocates pages when they are first written.

    Args:
        model: gives layers of attention, heads and their width: each array is [1, kv_heads, capacity, head_dim].
        dtype: float16 or float32, as the graph's activations.
        device: the short name of an execution provider, such as "cpu".
        layers: those that are held; None for all with attention.
    """

    def __init__(
        self, model: CacheShape, capacity: int, dtype: npt.DTypeLike, device: str, layers: Sequence[int] | None = None
    ) -> None:
        shape = (1, model.kv_heads, capacity, model.head_dim)
        names = [f"{layer}.{kind}" for layer in layers or model.attention for kind in ("key", "value")]
        values = bindings().OrtValue
        #: Whether `move` is possible.
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
        """Bind the buffers to the inputs and outputs of `binding`."""
        for name, value in self._values.items():
            binding.bind_ortvalue_input(f"past.{name}", value)
            binding.bind_ortvalue_output(f"present.{name}", value)

    def move(self, rows: Sequence[int], start: int) -> None:
        """Copy `rows`, in this order, to the rows from `start` on. Only if `movable`."""
        for array in self._arrays:
            array[:, :, start : start + len(rows)] = array[:, :, rows]
