"""The two matrices of a model with a row for each token, of its embeddings and its outputs, from any of its formats.

Quantized ones are read as the numbers that they stand for, a block of rows at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from edgespec.backends.gguf_header import Header
from edgespec.backends.onnx_file import Described
from edgespec.converters.checkpoint import Checkpoint, Json, read_json
from edgespec.converters.decoder import Decoder
from edgespec.converters.packing import Packing, Unquantized
from edgespec.converters.stored_tensor import StoredTensor
from edgespec.errors import ConversionError

_PLAIN_KINDS = {0: "F32", 1: "F16", 30: "BF16"}  # of enum ggml_type
#: Keys of config.json and of GGUF files for what embeddings and logits are multiplied by, and for a cap of logits.
_SCALES = ("embedding_multiplier", "scale_emb", "logits_scaling", "logit_scale", "final_logit_softcapping")
_GGUF_SCALES = ("embedding_scale", "logit_scale", "final_logit_softcapping")


class TargetWeights(Protocol):
    """The matrices of a model with a row for each token."""

    def embedding(self) -> StoredTensor:
        """That of its embeddings, [tokens, width]. ConversionError if it cannot be read."""
        ...

    def output(self) -> StoredTensor:
        """That which logits are computed with, [tokens, width]. ConversionError if it cannot be read."""
        ...

    def scaling(self) -> str:
        """What else happens to embeddings or logits, by the name of its setting; empty for most models."""
        ...


@dataclass(frozen=True, slots=True)
class CheckpointWeights:
    """Those of a checkpoint."""

    checkpoint: Checkpoint
    graph: Decoder

    def embedding(self) -> StoredTensor:
        return self._of("token_embd")

    def output(self) -> StoredTensor:
        return self._of("token_embd" if self.graph.tied else "output")

    def scaling(self) -> str:
        scales = self.graph.scales
        plain = scales.embedding == scales.logits == 1 and not scales.logits_cap
        return "" if plain else _scaled(self.checkpoint.config) or "a scale"

    def _of(self, role: str) -> StoredTensor:
        weight = next(each for each in self.graph.weights() if each.layer is None and each.role == role)
        (stored,) = weight.stored(self.checkpoint)
        return stored


@dataclass(frozen=True, slots=True)
class GgufWeights:
    """Those of a GGUF file."""

    path: Path
    header: Header

    def embedding(self) -> StoredTensor:
        return self._of("token_embd.weight")

    def output(self) -> StoredTensor:
        return self._of("output.weight" if "output.weight" in self.header.tensors else "token_embd.weight")

    def scaling(self) -> str:
        if self.header.architecture.startswith("gemma"):
            return "the scale of Gemma's embeddings"
        keys = (self.header.key(key) for key in _GGUF_SCALES)
        return next((key for key in keys if self.header.fields.get(key) not in (None, 0, 1)), "")

    def _of(self, name: str) -> StoredTensor:
        tensor = self.header.tensors.get(name)
        if tensor is None or len(tensor.shape) != 2:
            raise ConversionError(f"{self.path} has no matrix {name}; give the model as one file, or its checkpoint")
        shape, offset = tensor.shape[::-1], self.header.length + tensor.offset
        if (plain := _PLAIN_KINDS.get(tensor.kind)) is not None:
            width = 4 if plain == "F32" else 2
            return StoredTensor(name, plain, shape, self.path, offset, shape[0] * shape[1] * width)
        import gguf  # noqa: PLC0415

        try:
            block, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType(tensor.kind)]
        except (KeyError, ValueError) as error:
            raise ConversionError(
                f"{self.path}: {name} is of the type {tensor.kind}, which cannot be read; give the checkpoint"
            ) from error
        nbytes = shape[0] * (shape[1] // block) * size
        return GgmlTensor(name, "F32", shape, self.path, offset, nbytes, kind=tensor.kind)


@dataclass(frozen=True, slots=True)
class OnnxWeights:
    """Those of a model that edgespec converted to ONNX."""

    described: Described

    def embedding(self) -> StoredTensor:
        return self._of("token_embd")

    def output(self) -> StoredTensor:
        return self._of("output")

    def scaling(self) -> str:
        return _scaled(read_json(self.described.path.with_name("config.json")) or {})

    def _of(self, name: str) -> StoredTensor:
        from edgespec.converters.onnx import SCHEMES  # noqa: PLC0415 - needs onnx

        described = self.described
        shape, packing = (described.vocabulary, described.hidden), SCHEMES[described.quantization].ends
        suffixes = [part.suffix for part in packing.parts(*shape)]
        offsets = self._offsets()
        # Embeddings that are quantized in blocks are seen as rows of bytes; tied ones have the same place.
        names = [f"{name}.{suffix}" if f"{name}.{suffix}" in offsets else f"{name}.rows" for suffix in suffixes]
        if missing := [each for each in names if each not in offsets]:
            raise ConversionError(f"{described.path} has no weights {missing[0]}; give the checkpoint it was made from")
        places = tuple(offsets[each] for each in names)
        if isinstance(packing, Unquantized):
            dtype = "F16" if described.half else "F32"
            nbytes = shape[0] * shape[1] * packing.dtype.itemsize
            return StoredTensor(name, dtype, shape, described.data, places[0], nbytes)
        return PackedTensor(name, "F32", shape, described.data, 0, 0, packing=packing, places=places, of=shape)

    def _offsets(self) -> Mapping[str, int]:
        """Where the weights lie in the file of data, by name."""
        import onnx  # noqa: PLC0415

        model = onnx.load_model(str(self.described.path), load_external_data=False)
        stored = {each.name: {entry.key: entry.value for entry in each.external_data} for each in
                  model.graph.initializer}  # fmt: skip
        return {name: int(place["offset"]) for name, place in stored.items() if "offset" in place}


@dataclass(frozen=True, slots=True)
class GgmlTensor(StoredTensor):
    """A quantized matrix of a GGUF file; `kind` is its type, of enum ggml_type. Blocks are float32."""

    kind: int = 0

    def blocks(self, multiple: int = 1, weights: int = 1 << 20) -> Iterator[npt.NDArray[Any]]:
        """As `StoredTensor.blocks`."""
        import gguf  # noqa: PLC0415

        rows, columns = self.shape
        group, kind = _group(multiple, weights, columns), gguf.GGMLQuantizationType(self.kind)
        codes = _mapped(self, np.uint8, (rows, self.nbytes // rows), self.offset)
        for start in range(0, rows, group):
            yield gguf.quants.dequantize(codes[start : start + group], kind)


@dataclass(frozen=True, slots=True)
class PackedTensor(StoredTensor):
    """A quantized matrix of a converted ONNX model. Blocks are float32.

    Args:
        packing: how it is quantized.
        places: the offsets of its parts in the file.
        of: the shape of the whole matrix.
        first: the first row meant.
    """

    packing: Packing | None = None
    places: tuple[int, ...] = ()
    of: tuple[int, int] = (0, 0)
    first: int = 0

    def rows(self, part: range) -> StoredTensor:
        """Successive rows."""
        return replace(self, shape=(len(part), self.shape[1]), first=self.first + part.start)

    def blocks(self, multiple: int = 1, weights: int = 1 << 20) -> Iterator[npt.NDArray[Any]]:
        """As `StoredTensor.blocks`."""
        if self.packing is None or isinstance(self.packing, Unquantized):
            return
        rows, columns = self.shape
        group, end = _group(multiple, weights, columns), self.first + rows
        found = [(part, _mapped(self, part.dtype, part.shape, offset))
                 for part, offset in zip(self.packing.parts(*self.of), self.places, strict=True)]  # fmt: skip
        for start in range(self.first, end, group):
            these = slice(start, min(start + group, end))
            parts = [array[..., these] if part.turned else array[these] for part, array in found]
            yield self.packing.unpack(*parts)[:, :columns]


def _group(multiple: int, weights: int, columns: int) -> int:
    """The rows of a block, as in `StoredTensor.blocks`."""
    return multiple * max(1, weights // max(1, columns * multiple))


def _mapped(tensor: StoredTensor, dtype: npt.DTypeLike, shape: tuple[int, ...], offset: int) -> npt.NDArray[Any]:
    try:
        return np.memmap(tensor.path, dtype, "r", offset, shape)
    except (OSError, ValueError) as error:
        raise ConversionError(f"{tensor.path} ends inside {tensor.name}, or cannot be read; fetch it again") from error


def _scaled(config: Json) -> str:
    if str(config.get("model_type")).startswith("gemma"):
        return "the scale of Gemma's embeddings"
    return next((key for key in _SCALES if config.get(key) not in (None, 0, 1)), "")
