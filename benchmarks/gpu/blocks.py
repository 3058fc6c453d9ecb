"""Rows of quantized weights, without a conversion: most are random bytes, a small part has given values.

A random block has random numbers and a fixed scale. A silent one has the scale zero, so that all of its weights are
zero: it is read and multiplied like any other and adds nothing.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt

from edgespec.backends.llama_library import ggml_function

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]
_POOL = 16 << 20  # random bytes that larger tensors repeat
_LOUD = 0.02  # about the standard deviation of random weights


@dataclass(frozen=True, slots=True)
class Kind:
    """A type of ggml: numbers and bytes of a block, and the 16-bit scales in it, by their place in bytes."""

    name: str
    numbers: int
    size: int
    scales: Mapping[int, float]

    @property
    def number(self) -> Any:
        """The type in a GGUF file."""
        return gguf.GGMLQuantizationType[self.name]

    def bytes_of(self, columns: int) -> int:
        """Bytes of a row."""
        return columns // self.numbers * self.size


#: The scales make random numbers of a block about as large as `_LOUD`. K-quants multiply them by 6 or 8 bits more.
KINDS = {
    each.name: each
    for each in (
        Kind("F16", 1, 2, {}),
        Kind("Q8_0", 32, 34, {0: _LOUD / 74}),
        Kind("Q4_0", 32, 18, {0: _LOUD / 4.6}),
        Kind("Q4_K", 256, 144, {0: _LOUD / 170, 2: _LOUD / 23}),
        Kind("Q6_K", 256, 210, {208: _LOUD / 1370}),
    )
}


def rows(kind: Kind, count: int, columns: int, *, silent: bool = False, seed: int = 0) -> Bytes:
    """Random rows, uint8 [count, bytes of a row]; `silent` ones have the value zero.

    A matrix of more than 16 MB repeats its bytes, from another place in each matrix.
    """
    if kind.name == "F16":
        return _halves(count, columns, silent=silent, seed=seed)
    size = count * kind.bytes_of(columns)
    blocks = np.resize(np.roll(_pool(), seed * 7919), size).reshape(-1, kind.size)
    for place, scale in kind.scales.items():
        value = np.float16(0 if silent else scale)
        blocks[:, place : place + 2] = np.frombuffer(value.tobytes(), np.uint8)
    return blocks.reshape(count, -1)


def _halves(count: int, columns: int, *, silent: bool, seed: int) -> Bytes:
    if silent:
        return np.zeros((count, 2 * columns), np.uint8)
    numbers = _normal()
    found: Bytes = np.resize(np.roll(numbers, seed * 7919), count * columns).view(np.uint8).reshape(count, -1)
    return found


@cache
def _pool() -> Bytes:
    return np.random.default_rng(0).integers(0, 256, _POOL, np.uint8)


@cache
def _normal() -> npt.NDArray[np.float16]:
    drawn = np.random.default_rng(0).standard_normal(_POOL // 2, np.float32) * np.float32(_LOUD)
    halves: npt.NDArray[np.float16] = drawn.astype(np.float16)
    return halves


def quantized(kind: Kind, values: Floats) -> Bytes:
    """Given rows, uint8 [rows, bytes of a row]; columns beyond the last whole block are filled up with zeros."""
    lacking = -values.shape[1] % kind.numbers
    padded = np.ascontiguousarray(np.pad(values, ((0, 0), (0, lacking))), np.float32)
    if kind.name == "F16":
        halves: Bytes = padded.astype(np.float16).view(np.uint8).reshape(len(values), -1)
        return halves
    found = np.zeros((len(padded), kind.bytes_of(padded.shape[1])), np.uint8)
    _quantize()(int(kind.number), padded.ctypes.data, found.ctypes.data, 0, len(padded), padded.shape[1], None)
    return found


@cache
def _quantize() -> Any:
    """ggml_quantize_chunk of the installed llama.cpp."""
    function = ggml_function("ggml_quantize_chunk")
    function.restype = ctypes.c_size_t
    whole = ctypes.c_int64
    function.argtypes = (ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, whole, whole, whole, ctypes.c_void_p)
    return function
