"""Weights as OpenVINO constants that share the memory of the mapped file: the file of an IR model, and quantized
matrices of converted ONNX models.

OpenVINO's own reader of ONNX files copies them. The plugin packs matrices for its kernels in the first pass; afterwards
their pages of the file are not needed in memory.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator
from mmap import PAGESIZE
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from .openvino_package import bindings

_DONTNEED = 4  # MADV_DONTNEED of Linux
_MS = "com.microsoft"
Array = npt.NDArray[Any]


class SharedWeights:
    """The constants that the weights of a graph refer to; they must live as long as the compiled model."""

    def __init__(self) -> None:
        self._kept: list[Array] = []

    def mapped(self, path: Path) -> Array:
        """The bytes of a file, uint8 [size], mapped read-only.

        Raises:
            OSError, ValueError: it cannot be mapped, or is empty.
        """
        return self._writable(np.memmap(path, np.uint8, "r"))

    def extensions(self) -> Iterator[Any]:
        """What replaces OpenVINO's translation of these operators."""
        from openvino.frontend.onnx import ConversionExtension  # noqa: PLC0415 - with the engine

        for name in ("MatMulNBits", "GatherBlockQuantized", "QuickGelu"):
            yield ConversionExtension(name, _MS, getattr(self, f"_{_snake(name)}"))

    def release(self, file: Path) -> None:
        """Give the pages of the mapped `file` back to the system, which reads them again where they are needed.

        Only memory that is mapped from the file: what the reader copied would be lost.
        """
        if sys.platform != "linux":
            return
        libc = ctypes.CDLL(None)
        mapped = list(_mappings(file))
        for array in self._kept:
            start = -(-array.ctypes.data // PAGESIZE) * PAGESIZE
            end = (array.ctypes.data + array.nbytes) // PAGESIZE * PAGESIZE
            if any(first <= start < end <= last for first, last in mapped):
                libc.madvise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), _DONTNEED)

    def _mat_mul_n_bits(self, node: Any) -> Any:
        """x times the transpose of scale * (code - zero point), a scale for every block of a row."""
        ops = bindings().opset13
        rows, columns, bits, block = (int(node.get_attribute(name)) for name in ("N", "K", "bits", "block_size"))
        blocks = -(-columns // block)
        shape = [rows, blocks, block]
        codes = self._codes(self._shared(node.get_input(1)), shape, bits)
        zeros = self._codes(self._shared(node.get_input(3)), [rows, blocks, 1], bits)
        scales = ops.convert(self._shared_constant(node.get_input(2), [rows, blocks, 1]), "f32")
        numbers = ops.multiply(ops.subtract(ops.convert(codes, "f32"), ops.convert(zeros, "f32")), scales)
        matrix = ops.reshape(numbers, _whole([rows, blocks * block]), special_zero=False)
        if blocks * block > columns:
            matrix = ops.slice(matrix, _whole([0]), _whole([columns]), _whole([1]), _whole([1]))
        x = node.get_input(0)
        kind = x.get_element_type()
        product = ops.matmul(ops.convert(x, "f32"), matrix, transpose_a=False, transpose_b=True)
        return [ops.convert(product, kind).output(0)]

    def _gather_block_quantized(self, node: Any) -> Any:
        """Rows of an embedding that is quantized like a matrix."""
        ops = bindings().opset13
        bits = int(node.get_attribute("bits"))
        codes, ids, scales, zeros = (node.get_input(i) for i in range(4))
        axis = _whole(0)
        blocks = scales.get_partial_shape()[1].get_length()

        def gathered(source: Any) -> Any:
            """[1, n, blocks, numbers of a block]"""
            rows = ops.convert(ops.gather(self._shared_constant(source), ids, axis), "f32")
            if bits == 4:
                high = ops.floor(ops.divide(rows, np.float32(16)))
                low = ops.subtract(rows, ops.multiply(high, np.float32(16)))
                last = _whole(-1)
                pairs = ops.concat([ops.unsqueeze(low, last), ops.unsqueeze(high, last)], -1)
                rows = ops.reshape(pairs, _whole([0, 0, -1]), special_zero=True)
            return rows

        split = _whole([0, 0, blocks, -1])
        points = ops.slice(gathered(zeros), _whole([0]), _whole([blocks]), _whole([1]), _whole([2]))
        numbers = ops.subtract(
            ops.reshape(gathered(codes), split, special_zero=True), ops.reshape(points, split, special_zero=True)
        )
        steps = ops.gather(self._shared_constant(scales), ids, axis)
        scaled = ops.multiply(numbers, ops.reshape(ops.convert(steps, "f32"), split, special_zero=True))
        whole = ops.reshape(scaled, _whole([0, 0, -1]), special_zero=True)
        return [ops.convert(whole, scales.get_element_type()).output(0)]

    def _quick_gelu(self, node: Any) -> Any:
        """x * sigmoid(alpha * x); OpenVINO's own takes no float16."""
        ops, x = bindings().opset13, node.get_input(0)
        alpha = ops.convert(ops.constant(np.float32(node.get_attribute("alpha"))), x.get_element_type())
        return [ops.multiply(x, ops.sigmoid(ops.multiply(x, alpha))).output(0)]

    def _codes(self, array: Array, shape: list[int], bits: int) -> Any:
        """Packed codes as a constant of `shape`."""
        ov = bindings()
        if bits == 8:
            return ov.opset13.constant(array.reshape(shape), shared_memory=True)
        if array.size * 2 != np.prod(shape):  # rows with an odd number of zero points
            pairs = array.reshape(shape[0], -1)
            halves = np.stack([pairs & 15, pairs >> 4], -1).reshape(shape[0], -1)[:, : shape[1]]
            return ov.opset13.constant(np.ascontiguousarray(halves).reshape(shape))
        return ov.op.Constant(ov.Tensor(array.reshape(-1), ov.Shape(shape), ov.Type.u4))

    def _shared_constant(self, source: Any, shape: list[int] | None = None) -> Any:
        array = self._shared(source)
        return bindings().opset13.constant(array if shape is None else array.reshape(shape), shared_memory=True)

    def _shared(self, source: Any) -> Array:
        """The numbers of a constant, in place."""
        return self._writable(source.get_node().data)

    def _writable(self, array: Array) -> Array:
        """`array` in place: OpenVINO takes only arrays that may be written, and does not write."""
        self._kept.append(array)
        memory: Any = (ctypes.c_uint8 * array.nbytes).from_address(array.ctypes.data)
        shared: Array = np.frombuffer(memory, array.dtype).reshape(array.shape)
        return shared


def _mappings(file: Path) -> Iterator[tuple[int, int]]:
    """The addresses, first and after the last, at which this process has mapped `file`."""
    with Path("/proc/self/maps").open() as lines:
        for line in lines:
            addresses, _, _, _, _, *name = line.split(maxsplit=5)
            if name and name[0].rstrip("\n") == str(file.resolve()):
                first, last = addresses.split("-")
                yield int(first, 16), int(last, 16)


def _whole(values: Any) -> Any:
    return bindings().opset13.constant(np.array(values, np.int64))


def _snake(name: str) -> str:
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name).lstrip("_")
