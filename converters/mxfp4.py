"""Matrices of 4-bit floats in blocks of 32 with a shared exponent, as gpt-oss stores its experts.

https://www.opencompute.org/documents/ocp-microscaling-formats-mx-v1-0-spec-final-pdf. A checkpoint has the codes of a
block as 16 bytes, of which each holds two neighbours, and the exponents in a tensor of their own. ggml's type MXFP4 has
17 bytes: the exponent, and 16 bytes of which each holds a number of the block's first half and one of its second.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from edgespec.converters.stored_tensor import StoredTensor
from edgespec.errors import ConversionError

DTYPE = "MXFP4"
GGML_TYPE = 39  # GGML_TYPE_MXFP4 of enum ggml_type in ggml.h
FILE_TYPE = 38  # LLAMA_FTYPE_MOSTLY_MXFP4_MOE of llama.h
BLOCK = 32
_ROWS = 1 << 12  # read at a time


@dataclass(frozen=True, slots=True)
class Mxfp4Tensor(StoredTensor):
    """Each `step`-th row of a matrix, from the first or second on; `codes` and `exponents` are all of its rows."""

    codes: StoredTensor | None = None
    exponents: StoredTensor | None = None
    first: int = 0
    step: int = 1

    def blocks(self, multiple: int = 1, weights: int = 1 << 20) -> Iterator[npt.NDArray[Any]]:
        """ConversionError: these numbers are copied, never read."""
        del multiple, weights
        raise ConversionError(f"{self.path}: {self.name} is {DTYPE}, which only a GGUF of its family can hold")

    def packed(self) -> Iterator[tuple[int, npt.NDArray[np.uint8]]]:
        """The rows in ggml's type, a block of them at a time: how many numbers, and their bytes."""
        if self.codes is None or self.exponents is None:
            return
        for start in range(0, self.codes.shape[0], _ROWS):
            part = range(start, min(start + _ROWS, self.codes.shape[0]))
            codes, exponents = (_bytes(stored.rows(part)) for stored in (self.codes, self.exponents))
            chosen = slice((self.first - start) % self.step, None, self.step)
            yield _packed(codes[chosen], exponents[chosen])


def _bytes(stored: StoredTensor) -> npt.NDArray[np.uint8]:
    """The rows of a tensor of bytes."""
    try:
        with stored.path.open("rb") as file:
            file.seek(stored.offset)
            data = file.read(stored.nbytes)
    except OSError as error:
        raise ConversionError(f"{stored.path} cannot be read: {error.strerror or error}") from error
    if len(data) != stored.nbytes:
        raise ConversionError(f"{stored.path} ends inside {stored.name}; fetch the file again")
    return np.frombuffer(data, np.uint8).reshape(stored.shape)


def _packed(codes: npt.NDArray[np.uint8], exponents: npt.NDArray[np.uint8]) -> tuple[int, npt.NDArray[np.uint8]]:
    numbers = np.stack([codes & 15, codes >> 4], -1).reshape(*exponents.shape, BLOCK)
    halves = numbers[..., : BLOCK // 2] | numbers[..., BLOCK // 2 :] << 4
    return numbers.size, np.concatenate([exponents[..., None], halves], -1).reshape(-1)


def matrices(codes: StoredTensor, exponents: StoredTensor, step: int) -> Iterator[tuple[Mxfp4Tensor, ...]]:
    """The matrices of each expert: `step` of them, whose rows alternate.

    Nothing for tensors of other shapes than [experts, rows, blocks, 16] and [experts, rows, blocks].
    """
    shape = codes.shape
    if len(shape) != 4 or shape[3] * 2 != BLOCK or exponents.shape != shape[:3] or not codes.nbytes or shape[1] % step:
        return
    if {codes.dtype, exponents.dtype} != {"U8"}:
        return
    own = (shape[1] // step, shape[2] * BLOCK)
    for expert in range(shape[0]):
        one = [replace(stored.rows(range(expert, expert + 1)), shape=stored.shape[1:]) for stored in (codes, exponents)]
        yield tuple(
            Mxfp4Tensor(codes.name, DTYPE, own, codes.path, 0, 0, codes=one[0], exponents=one[1], first=i, step=step)
            for i in range(step)
        )
