"""The KV cache of one sequence, in blocks that paged attention writes in place.

Rows beyond the length are invalid, so a rollback costs nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from .openvino_graph import BLOCK
from .openvino_package import bindings


class PagedCache:
    """Keys and values of at most `capacity` tokens, in NumPy arrays, for which the system allocates pages when they are
    first written.

    Args:
        compiled: the compiled model. Its inputs give the dtype, and the shape of a block: each array is
            [blocks, kv_heads, BLOCK, head_dim].
    """

    def __init__(self, compiled: Any, capacity: int) -> None:
        #: The number of blocks.
        self.blocks = -(-capacity // BLOCK)
        self._arrays: list[npt.NDArray[Any]] = []
        self._tensors: dict[str, Any] = {}
        for port in compiled.inputs:
            name = port.get_any_name()
            if name.startswith(("key_cache.", "value_cache.")):
                shape = [self.blocks, *(size.get_length() for size in list(port.get_partial_shape())[1:])]
                array = np.zeros(shape, port.get_element_type().to_dtype())
                self._arrays.append(array)
                self._tensors[name] = bindings().Tensor(array, shared_memory=True)

    @property
    def tensors(self) -> Mapping[str, Any]:
        """The buffers by the name of the input, as `openvino.Tensor`; they share the memory of the arrays."""
        return self._tensors

    def move(self, rows: Sequence[int], start: int) -> None:
        """Copy `rows`, in this order, to the rows from `start` on."""
        old, new = np.array(rows), np.arange(start, start + len(rows))
        for array in self._arrays:
            array[new // BLOCK, :, new % BLOCK] = array[old // BLOCK, :, old % BLOCK]
