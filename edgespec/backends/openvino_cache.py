"""The KV cache of one sequence, in blocks that paged attention writes in place.

Rows beyond the length are invalid, so a rollback costs nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import EngineError
from .openvino_device import ComputeDevice
from .openvino_package import bindings, reason

_TYPES = ("f16", "bf16", "f32")  # without scales among the numbers


class PagedCache:
    """Keys and values of at most `capacity` tokens.

    In the CPU's memory they are NumPy arrays, for which the system allocates pages when they are first written.

    Args:
        compiled: the compiled model. Its inputs give the shape and the dtype of a block.
        widths: the numbers of one token by the name of each input.

    Raises:
        EngineError: blocks of an unknown form, or too little memory.
    """

    def __init__(self, compiled: Any, widths: Mapping[str, int], capacity: int, device: ComputeDevice) -> None:
        ports = {name: port for port in compiled.inputs if (name := port.get_any_name()) in widths}
        self._block = _block_size(ports, widths, device)
        #: The number of blocks.
        self.blocks = -(-capacity // self._block)
        self._arrays: list[npt.NDArray[Any]] = []
        self._tensors: dict[str, Any] = {}
        memory = device.memory() if device.remote else None
        for name, port in ports.items():
            shape = [self.blocks, *_sizes(port)]
            if memory is None:
                array = np.zeros(shape, port.get_element_type().to_dtype())
                self._arrays.append(array)
                self._tensors[name] = bindings().Tensor(array, shared_memory=True)
            else:
                self._tensors[name] = _remote(memory, port.get_element_type(), shape, device)

    @property
    def tensors(self) -> Mapping[str, Any]:
        """The buffers by the name of the input, as `openvino.Tensor`; they share the memory of the arrays."""
        return self._tensors

    @property
    def movable(self) -> bool:
        """Whether rows can be moved: the arrays are [blocks, heads, tokens of a block, numbers of a head]."""
        return bool(self._arrays) and all(array.shape[2] == self._block for array in self._arrays)

    def move(self, rows: Sequence[int], start: int) -> None:
        """Copy `rows`, in this order, to the rows from `start` on."""
        old, new, block = np.array(rows), np.arange(start, start + len(rows)), self._block
        for array in self._arrays:
            array[new // block, :, new % block] = array[old // block, :, old % block]


def _block_size(ports: Mapping[str, Any], widths: Mapping[str, int], device: ComputeDevice) -> int:
    """The tokens of a block, whatever the order of its dimensions."""
    found = 0
    for name, port in ports.items():
        block, rest = divmod(prod(_sizes(port)), widths[name])
        kind = port.get_element_type().get_type_name()
        if rest or block < 1 or kind not in _TYPES or (found and block != found):
            raise EngineError(
                f"OpenVINO's {device.name} plugin keeps keys and values in a form that edgespec does not know ({name} "
                f"is {port.get_partial_shape()} of {kind}, for {widths[name]} numbers of a token); take provider cpu"
            )
        found = block
    return found


def _sizes(port: Any) -> list[int]:
    """The sizes of a block, which are known but for the number of blocks; 0 for others."""
    shape = port.get_partial_shape()
    if shape.rank.is_dynamic or shape.rank.get_length() != 4:
        return [0]
    return [size.get_length() if size.is_static else 0 for size in list(shape)[1:]]


def _remote(memory: Any, kind: Any, shape: Sequence[int], device: ComputeDevice) -> Any:
    try:
        return memory.create_tensor(kind, bindings().Shape(list(shape)), {})
    except Exception as error:  # RuntimeError of pybind, of any cause
        raise EngineError(
            f"OpenVINO cannot allocate a cache of {shape[0]} blocks on {device.name} ({reason(error)}); take a shorter "
            "context, or provider cpu"
        ) from error
