"""How the numbers of a matrix are packed for ONNX Runtime, a block of rows at a time.

A packing has

    step                    how many numbers are best packed at a time
    gathered                how many are best written at a time
    parts(rows, columns)    the arrays that stand for such a matrix
    pack(rows)              float32 [n, columns] as n rows of each part; ValueError for a number that is not finite or
                            too large
    unpack(*parts)          n rows of each part as float32 [n, columns], perhaps with padding after them, of those that
                            quantize
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Dtype = np.dtype[Any]

FLOAT, HALF, BYTE, SIGNED = np.dtype("<f4"), np.dtype("<f2"), np.dtype("u1"), np.dtype("i1")


@dataclass(frozen=True, slots=True)
class Part:
    """One array of a packed matrix. Its first axis is the matrix's rows; its last, where `turned`."""

    suffix: str
    dtype: Dtype
    shape: tuple[int, ...]
    turned: bool = False

    @property
    def nbytes(self) -> int:
        return prod(self.shape) * self.dtype.itemsize


def number(values: npt.NDArray[Any], dtype: Dtype) -> npt.NDArray[Any]:
    """`values` as `dtype`. ValueError if one is not finite there."""
    with np.errstate(over="ignore", invalid="ignore"):
        found: npt.NDArray[Any] = values.astype(dtype)
    if not np.isfinite(found).all():
        raise ValueError("not finite")
    return found


@dataclass(frozen=True, slots=True)
class Unquantized:
    """The numbers themselves."""

    dtype: Dtype
    step: int = 1 << 20
    gathered: int = 0

    def parts(self, rows: int, columns: int) -> tuple[Part, ...]:
        return (Part("weight", self.dtype, (rows, columns)),)

    def pack(self, rows: Floats) -> tuple[npt.NDArray[Any], ...]:
        return (number(rows, self.dtype),)


@dataclass(frozen=True, slots=True)
class Blockwise:
    """MatMulNBits: `bits` each, a scale and a zero point for every `block` numbers of a row.

    A number is scale * (code - zero point). The range of a block is widened to include 0, which stays exact.
    Rows are padded with zeros to whole blocks. The layout is that of com.microsoft.MatMulNBits in ONNX Runtime's
    ContribOperators.md; a row of GatherBlockQuantized is the same bytes.
    """

    bits: int
    block: int
    scales: Dtype
    step: int = 1 << 17
    gathered: int = 0

    def width(self, columns: int) -> int:
        """The block of a matrix: no larger than the power of two that covers a row, at least 16."""
        return min(self.block, max(16, 1 << (columns - 1).bit_length()))

    def blocks(self, columns: int) -> int:
        return -(-columns // self.width(columns))

    def shared(self, *columns: int) -> Blockwise | None:
        """The same with blocks that are no larger and that cut rows of all these lengths into two or more whole ones;
        None if no such blocks are at least 16 wide. QMoE wants the same blocks for all matrices of its experts."""
        block = self.block
        while any(width % block or width == block for width in columns):
            block //= 2
        return replace(self, block=block) if block >= 16 else None

    def parts(self, rows: int, columns: int) -> tuple[Part, ...]:
        blocks, width = self.blocks(columns), self.width(columns)
        return (
            Part("codes", BYTE, (rows, blocks, width * self.bits // 8)),
            Part("scales", self.scales, (rows, blocks)),
            Part("zeros", BYTE, (rows, -(-blocks * self.bits // 8))),
        )

    def pack(self, rows: Floats) -> tuple[npt.NDArray[Any], ...]:
        n, columns = rows.shape
        blocks, top = self.blocks(columns), np.float32((1 << self.bits) - 1)
        if spare := blocks * self.width(columns) - columns:
            rows = np.pad(rows, ((0, 0), (0, spare)))
        values = rows.reshape(n * blocks, -1)
        low, high = np.minimum(values.min(1), 0), np.maximum(values.max(1), 0)
        with np.errstate(over="ignore", invalid="ignore"):
            scales = number((high - low) / top, self.scales)
        scales[scales == 0] = 1  # a block of zeros, or of numbers that float16 has no scale for
        inverse = 1 / scales.astype(np.float32)
        zeros = np.minimum(np.rint(-low * inverse), top)
        codes = values * inverse[:, None]
        codes += (zeros + np.float32(0.5))[:, None]  # the cast rounds down
        np.clip(codes, 0, top + np.float32(0.5), out=codes)
        return (
            self._packed(codes.astype(np.uint8).reshape(n, -1)),
            scales.reshape(n, blocks),
            self._packed(zeros.astype(np.uint8).reshape(n, blocks)),
        )

    def unpack(self, codes: npt.NDArray[np.uint8], scales: npt.NDArray[Any], zeros: npt.NDArray[np.uint8]) -> Floats:
        n, blocks = scales.shape
        values = self._unpacked(codes.reshape(n, -1)).reshape(n, blocks, -1).astype(np.float32)
        values -= self._unpacked(zeros)[:, :blocks, None]
        values *= scales[:, :, None].astype(np.float32)
        return values.reshape(n, -1)

    def _unpacked(self, packed: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
        """One to a byte."""
        if self.bits == 8:
            return packed
        return np.stack([packed & 15, packed >> 4], -1).reshape(len(packed), -1)

    def _packed(self, codes: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
        """With 4 bits two to a byte, the first in the lower half."""
        if self.bits == 8:
            return codes
        if codes.shape[1] % 2:
            codes = np.pad(codes, ((0, 0), (0, 1)))
        pairs = codes.view("<u2")
        packed: npt.NDArray[np.uint8] = (pairs | pairs >> 4).astype(np.uint8)
        return packed


@dataclass(frozen=True, slots=True)
class Turned:
    """Eight bits each and one scale per row, the matrix turned: what MatMulIntegerToFloat takes."""

    step: int = 1 << 20
    gathered: int = 1 << 25  # the longer the pieces of its columns, the fewer writes

    def parts(self, rows: int, columns: int) -> tuple[Part, ...]:
        return (Part("codes", SIGNED, (columns, rows), turned=True), Part("scales", FLOAT, (rows,)))

    def pack(self, rows: Floats) -> tuple[npt.NDArray[Any], ...]:
        with np.errstate(invalid="ignore"):  # `number` says so of a signalling NaN, too
            scales = number(np.maximum(rows.max(1), -rows.min(1)) / np.float32(127), FLOAT)
        scales[scales == 0] = 1
        codes = rows / scales[:, None]
        return np.ascontiguousarray(np.rint(codes, out=codes).astype(np.int8).T), scales

    def unpack(self, codes: npt.NDArray[np.int8], scales: Floats) -> Floats:
        values: Floats = codes.T.astype(np.float32)
        values *= scales[:, None]
        return values


Packing: TypeAlias = Unquantized | Blockwise | Turned
