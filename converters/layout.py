"""The offset of each array in the file of weights, fixed before any is written."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from edgespec.converters.packing import Packing, Part
from edgespec.converters.stored_tensor import StoredTensor
from edgespec.converters.thread_pool import OrderedThreadPool
from edgespec.errors import ConversionError

_Arrays = tuple[npt.NDArray[Any], ...]
_ALIGNMENT = 4096  # a page: the file can be mapped


@dataclass(frozen=True, slots=True)
class Place:
    """The place of one part in the file."""

    part: Part
    offset: int

    def write(self, file: BinaryIO, row: int, data: npt.NDArray[Any]) -> None:
        """Write `data`, the part's share of the rows from `row` on, to its place."""
        if not self.part.turned:
            file.seek(self.offset + row * (self.part.nbytes // self.part.shape[0]))
            file.write(data.data)
            return
        width, rows = self.part.dtype.itemsize, self.part.shape[-1]
        pieces = [data] if data.shape[-1] == rows else data
        for column, piece in enumerate(pieces):
            file.seek(self.offset + (column * rows + row) * width)
            file.write(piece.data)


@dataclass(frozen=True, slots=True)
class Matrix:
    """Tensors of a checkpoint, concatenated by rows and packed as one matrix."""

    sources: tuple[StoredTensor, ...]
    packing: Packing
    places: tuple[Place, ...]

    def write(self, file: BinaryIO, pool: OrderedThreadPool) -> Iterator[tuple[str, int]]:
        """Write the matrix. Yields the name of the tensor and the count of numbers after each block.

        ConversionError for numbers that the packing cannot hold.
        """
        row, waiting, held = 0, list[_Arrays](), 0
        for source in self.sources:
            packed = partial(self._packed, source)
            for size, arrays in pool.map(packed, source.blocks(weights=self.packing.step)):
                if not arrays:
                    raise ConversionError(
                        f"{source.path}: {source.name} holds numbers that are not finite or too large for this "
                        "quantization; fetch the file again, or try fp32"
                    )
                waiting.append(arrays)
                held += size
                if held >= self.packing.gathered:
                    row += self._put(file, row, waiting)
                    waiting, held = [], 0
                yield source.name, size
        if waiting:
            self._put(file, row, waiting)

    def _put(self, file: BinaryIO, row: int, waiting: list[_Arrays]) -> int:
        """Write these blocks, concatenated by rows, from `row` on. Returns their number of rows."""
        for place, blocks in zip(self.places, zip(*waiting, strict=True), strict=True):
            axis = -1 if place.part.turned else 0
            data = blocks[0] if len(blocks) == 1 else np.concatenate(blocks, axis)
            place.write(file, row, data)
        return int(data.shape[axis])

    def _packed(self, source: StoredTensor, block: npt.NDArray[Any]) -> tuple[int, _Arrays]:
        try:
            return block.size, self.packing.pack(source.float32(block))
        except ValueError:
            return block.size, ()


class Layout:
    """The layout of the file, of `size` bytes so far."""

    def __init__(self) -> None:
        self.matrices: list[Matrix] = []
        self.size = 0

    def matrix(self, sources: tuple[StoredTensor, ...], packing: Packing) -> Matrix:
        """Reserve space for the tensors `sources` as one matrix; vectors are matrices of one column."""
        rows = sum(source.shape[0] for source in sources)
        columns = sources[0].shape[1] if len(sources[0].shape) > 1 else 1
        made = Matrix(sources, packing, tuple(self.place(part) for part in packing.parts(rows, columns)))
        self.matrices.append(made)
        return made

    def place(self, part: Part) -> Place:
        """Reserve space for one array."""
        offset = -(-self.size // _ALIGNMENT) * _ALIGNMENT
        self.size = offset + part.nbytes
        return Place(part, offset)
