"""llama.cpp's quantizations: their names, which tensor gets which type, and the packing itself.

The type of each tensor depends on llama.cpp and its version (Q4_K_M, for example, mixes three types by layer). So
llama.cpp quantizes a skeleton model, with the same metadata and tensor names but two rows of zeros per matrix, and the
types are read from the result. Its choice depends on names, order, row lengths, and on the counts of heads, layers and
experts in the metadata, never on the number of rows or of experts' matrices (llama-quant.cpp,
`llama_tensor_get_type`). A single row would be a vector, and vectors stay float32.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from edgespec.converters import native
from edgespec.converters.atomic_file import scratch
from edgespec.converters.stored_tensor import StoredTensor
from edgespec.converters.thread_pool import OrderedThreadPool
from edgespec.errors import ConversionError, OptionError

#: Our names for llama.cpp's file types (enum llama_ftype in llama.h).
FILE_TYPES = {
    "f32": 0, "f16": 1, "bf16": 32, "q8_0": 7,
    "q6_k": 18, "q5_k_m": 17, "q5_k_s": 16, "q5_1": 9, "q5_0": 8,
    "q4_k_m": 15, "q4_k_s": 14, "q4_1": 3, "q4_0": 2, "iq4_nl": 25, "iq4_xs": 30,
    "q3_k_l": 13, "q3_k_m": 12, "q3_k_s": 11, "iq3_m": 27, "iq3_s": 26, "q2_k": 10,
}  # fmt: skip

_MATRIX = "it needs an importance matrix, which takes calibration text"
_TRAINED = "it is for models trained in that format, and destroys others"
_EXPERTS = "it is for mixture-of-experts models"
#: Quantizations of llama.cpp that this converter refuses, and the reasons.
REFUSED = {
    **dict.fromkeys(("iq1_s", "iq1_m", "iq2_xxs", "iq2_xs", "iq2_s", "iq2_m", "iq3_xxs", "iq3_xs", "q2_k_s"), _MATRIX),
    **dict.fromkeys(("tq1_0", "tq2_0", "q1_0", "q2_0"), _TRAINED),
    "mxfp4_moe": _EXPERTS,
    "nvfp4": "llama.cpp reads it but does not make it",
}


def file_type(name: str) -> int:
    """llama.cpp's number for a quantization. OptionError, with the reason and the known ones, if refused."""
    if name in FILE_TYPES:
        return FILE_TYPES[name]
    if name in REFUSED:
        raise OptionError(f"the quantization {name} is refused: {REFUSED[name]}; known: {', '.join(FILE_TYPES)}")
    raise OptionError(f"unknown quantization {name!r}; known: {', '.join(FILE_TYPES)}")


def tensor_types(
    skeleton: Callable[[Path, Mapping[str, tuple[int, ...]]], None],
    shapes: Mapping[str, tuple[int, ...]],
    kind: int,
) -> dict[str, int]:
    """The ggml type that llama.cpp gives each tensor in the file type `kind`.

    `skeleton(path, shapes)` writes a GGUF of zeros with these shapes, in NumPy's order (rows first).
    """
    import gguf  # noqa: PLC0415 - optional until a conversion starts

    few = {name: (*(min(2, n) for n in shape[:-1]), shape[-1]) for name, shape in shapes.items()}
    with scratch() as folder:
        bare, done = folder / "bare.gguf", folder / "done.gguf"
        skeleton(bare, few)
        native.quantize_file(bare, done, kind)
        # The reader maps the file: it has to be gone before the folder can be removed on Windows.
        types = {tensor.name: int(tensor.tensor_type) for tensor in gguf.GGUFReader(done).tensors}
    if types.keys() != shapes.keys():
        raise ConversionError("llama.cpp's quantizer returned other tensors than it was given; report this model")
    return types


def packed(
    parts: Sequence[StoredTensor], kind: int, order: npt.NDArray[np.int64] | None, pool: OrderedThreadPool
) -> Iterator[tuple[int, npt.NDArray[np.uint8]]]:
    """The rows of `parts`, one below the other, in the ggml type `kind`, in blocks: (numbers in the block, its bytes).

    With `order`, each group of `len(order)` rows is reordered by it. ConversionError for what the type
    cannot hold: infinities, or numbers too large for float16.
    """

    def work(piece: tuple[StoredTensor, npt.NDArray[Any]]) -> tuple[int, npt.NDArray[np.uint8]]:
        stored, block = piece
        if order is not None:
            block = block.reshape(-1, len(order), block.shape[1])[:, order].reshape(block.shape)
        try:
            return block.size, native.quantize_rows(kind, stored.float32(block))
        except ValueError as error:
            raise ConversionError(
                f"{stored.path}: {stored.name} holds numbers that are not finite or too large for this "
                "quantization; fetch the file again, or try f32 or bf16"
            ) from error

    multiple = 1 if order is None else len(order)
    yield from pool.map(work, ((stored, block) for stored in parts for block in stored.blocks(multiple)))
