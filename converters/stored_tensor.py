"""One tensor of a file of weights, read in blocks of rows.

Blocks are read with seek and read: a memory map would be as fast, but its pages count as memory of this process.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import chain
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from edgespec.errors import ConversionError

#: How a stored number is read; bfloat16, which NumPy lacks, as its 16 bits.
DTYPES: dict[str, np.dtype[Any]] = {"F32": np.dtype("<f4"), "F16": np.dtype("<f2"), "BF16": np.dtype("<u2")}

_LONGEST_NAME = 500  # characters; names of published checkpoints have fewer than 150


def check_name(name: str, source: object) -> None:
    """ConversionError unless `name` can stand in a message: printable, on one line, of a length that names have."""
    if not name.isprintable() or len(name) > _LONGEST_NAME:
        raise ConversionError(f"{source}: a tensor has the name {name[:80]!a}, which is none; fetch the file again")


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """One tensor in one file.

    Args:
        offset, nbytes: the place of its data in the file.
        columns: whether it is stored in column-major order.
        plus: a constant to add to each number.
        decay: whether -exp of each number is meant.
        width: the length of a stored row, where `kept` picks from it.
        kept: the numbers of a stored row that belong to the tensor, in this order; empty for all.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    path: Path
    offset: int
    nbytes: int
    columns: bool = False
    plus: float = 0.0
    decay: bool = False
    width: int = 0
    kept: tuple[range, ...] = ()

    def transposed(self) -> StoredTensor:
        """The transposed matrix, of the same data."""
        return replace(self, shape=self.shape[::-1], columns=not self.columns)

    def rows(self, part: range) -> StoredTensor:
        """Successive rows of a tensor that is stored by rows."""
        size = self.nbytes // self.shape[0]
        shape = (len(part), *self.shape[1:])
        return replace(self, shape=shape, offset=self.offset + part.start * size, nbytes=len(part) * size)

    def picked(self, kept: tuple[range, ...]) -> StoredTensor:
        """These columns of a matrix that is stored by rows, in this order."""
        return replace(self, shape=(self.shape[0], sum(map(len, kept))), width=self.shape[1], kept=kept)

    def float32(self, block: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
        """A block of `blocks` as numbers."""
        values = float32(block)
        if self.decay:
            return -np.exp(values)
        return values + np.float32(self.plus) if self.plus else values

    def blocks(self, multiple: int = 1, weights: int = 1 << 20) -> Iterator[npt.NDArray[Any]]:
        """The rows in order, a block at a time, as stored: `DTYPES[dtype]` [n, columns].

        n is a multiple of `multiple`, at most `weights` numbers where a single such group is no larger. A
        vector is read as rows of one column. ConversionError if the file ends early or cannot be read.
        """
        if self.columns:  # read as a whole: only GPT-2 has such matrices, which are small
            whole = np.concatenate(list(self.transposed().blocks())).T
            group = multiple * max(1, weights // (whole.shape[1] * multiple))
            for start in range(0, len(whole), group):
                yield np.ascontiguousarray(whole[start : start + group])
            return
        columns = self.width or prod(self.shape[1:])
        rows = self.shape[0] if self.shape else 1
        kept = np.fromiter(chain.from_iterable(self.kept), np.intp)
        group = multiple * max(1, weights // max(1, columns * multiple))
        try:
            with self.path.open("rb") as file:
                file.seek(self.offset)
                for start in range(0, rows, group):
                    block = np.empty((min(group, rows - start), columns), DTYPES[self.dtype])
                    if file.readinto(block.view(np.uint8).data) != block.nbytes:
                        raise ConversionError(f"{self.path} ends inside {self.name}; fetch the file again")
                    yield block[:, kept] if len(kept) else block
        except OSError as error:
            raise ConversionError(f"{self.path} cannot be read: {error.strerror or error}") from error


@dataclass(frozen=True, slots=True)
class InterleavedTensor(StoredTensor):
    """The rows of two matrices of one shape in turn. Blocks are float32, since the two may be stored differently."""

    parts: tuple[StoredTensor, ...] = ()

    def blocks(self, multiple: int = 1, weights: int = 1 << 20) -> Iterator[npt.NDArray[Any]]:
        """As `StoredTensor.blocks`."""
        read = (part.blocks(multiple, weights // len(self.parts)) for part in self.parts)
        for blocks in zip(*read, strict=True):
            values = [part.float32(block) for part, block in zip(self.parts, blocks, strict=True)]
            yield np.stack(values, 1).reshape(-1, self.shape[1])


def interleaved(first: StoredTensor, second: StoredTensor) -> InterleavedTensor:
    """The first row of `first`, that of `second`, and so on."""
    rows, columns = first.shape
    shape = (2 * rows, columns)
    return InterleavedTensor(first.name, "F32", shape, first.path, 0, 0, parts=(first, second))


def float32(block: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    """A block of `Stored.blocks` as numbers; exact, since float32 holds all of float16 and bfloat16."""
    if block.dtype == DTYPES["BF16"]:
        wide = block.astype(np.uint32)
        wide <<= 16
        return wide.view(np.float32)
    return block.astype(np.float32, copy=False)
