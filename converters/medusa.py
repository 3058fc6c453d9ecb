"""Medusa heads as an ONNX file that any engine's target drafts with (Cai et al. 2024, arXiv 2401.10774).

Head i guesses the token i + 2 places after a token, from the target's state of that token after the final norm: the
state from which the next token was chosen. A head is a few blocks x + silu(W x + b) and an output matrix.

    inputs   hidden float32 [1, width]
    outputs  tokens int64 [heads, 8], the likeliest first, numbered as the target's;
             logs float32 [heads, 8], the logarithms of their probabilities among the tokens that the head has

The checkpoint is `medusa_lm_head.safetensors` or `.pt`, or a model with the tensors `medusa_head.*` beside its own
(Medusa-2). Its heads are counted by their tensors: the published config.json files name too few.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto

from edgespec.converters import ConversionProgress, checkpoint
from edgespec.converters.atomic_file import atomic_file, check_file, reason, scratch
from edgespec.converters.head_target import HeadTarget
from edgespec.converters.onnx import SCHEMES
from edgespec.converters.onnx_nodes import MS, Nodes, Scheme
from edgespec.converters.packing import FLOAT, Unquantized
from edgespec.converters.stored_tensor import DTYPES, StoredTensor
from edgespec.converters.thread_pool import OrderedThreadPool
from edgespec.errors import ConversionError, OptionError

DEFAULT = "int8"  # quantization
GUESSES = 8  #: tokens that a head names
_FILES = ("medusa_lm_head.safetensors", "medusa_lm_head.pt", "medusa_lm_head.bin")
_PREFIX = "medusa_head."
_NAME = re.compile(r"(\d{1,3})\.(\d{1,3})\.(linear\.weight|linear\.bias|weight)")
_LEAST = 64  # tokens of a smaller vocabulary
_PADDING = 1024  # tokens by which the rows of a head and the vocabulary of its target may differ
_LARGEST = 2_000_000_000  # bytes of an ONNX file: its format allows 2 GiB
_Block = tuple[StoredTensor, StoredTensor]  # weight and bias


@dataclass(frozen=True, slots=True)
class MedusaHeads:
    """The tensors of a checkpoint, checked against each other: the blocks of each head, and its output matrix.

    `d2t` has the target's token for each row of the output matrices, where these are not all tokens in order.
    """

    source: Path
    blocks: tuple[tuple[_Block, ...], ...]
    outputs: tuple[StoredTensor, ...]
    d2t: tuple[int, ...] = ()

    @property
    def width(self) -> int:
        """Numbers of a state."""
        return self.outputs[0].shape[1]

    @property
    def rows(self) -> int:
        """Tokens of a head."""
        return self.outputs[0].shape[0]

    def parameters(self) -> int:
        blocks = sum(len(head) for head in self.blocks)
        return blocks * self.width * (self.width + 1) + len(self.outputs) * self.rows * self.width


def is_medusa(source: Path) -> bool:
    """Whether `source`, a file of weights or a folder, has Medusa heads, as far as names tell."""
    return any(_NAME.fullmatch(name) for name in _named(_tensors(source)))


def met(source: Path) -> str:
    """What `source` has in place of Medusa heads."""
    names = list(_tensors(source))
    if any("hydra" in name or "res_connection" in name for name in names):
        return "Hydra heads, which edgespec does not run"
    return f"its first tensor is {names[0]}" if names else "no tensors"


def read(source: Path) -> MedusaHeads:
    """The heads in `source`, a file of weights or a folder.

    ConversionError if they are incomplete, or have tensors that Medusa heads do not have.
    """
    tensors = dict(_named(_tensors(source)))
    listed = tensors.pop("d2t", None)
    if not tensors:
        raise ConversionError(f"{source} has no Medusa heads; expected {_FILES[0]}, {_FILES[1]}, or tensors {_PREFIX}*")
    found: dict[tuple[int, int, str], StoredTensor] = {}
    for name, tensor in tensors.items():
        if (parts := _NAME.fullmatch(name)) is None:
            raise ConversionError(f"{tensor.path}: {name} is no tensor of a Medusa head; expected the plain heads")
        found[int(parts[1]), int(parts[2]), parts[3]] = tensor
    heads = 1 + max(head for head, _, _ in found)
    layers = max((layer for _, layer, kind in found if kind == "weight"), default=0)
    blocks, outputs = [], []
    for head in range(heads):
        blocks.append(tuple((_take(source, found, head, layer, "linear.weight"),
                             _take(source, found, head, layer, "linear.bias")) for layer in range(layers)))  # fmt: skip
        outputs.append(_take(source, found, head, layers, "weight"))
    if found:
        (head, layer, kind), tensor = next(iter(found.items()))
        raise ConversionError(
            f"{tensor.path}: there is no place for {head}.{layer}.{kind} in {heads} heads of {layers} blocks; "
            "fetch the heads again"
        )
    _check_shapes(blocks, outputs)
    return MedusaHeads(source, tuple(blocks), tuple(outputs), _listed(listed, outputs[0].shape[0]) if listed else ())


def write(
    source: Path, target: HeadTarget, output: Path, quantization: str = "", *, rows: int | None = None,
    force: bool = False,
) -> Iterator[ConversionProgress]:  # fmt: skip
    """Convert the heads in `source` for `target` into the ONNX file `output`.

    Args:
        rows: the tokens that the heads have: control tokens first, then those with the lowest numbers, which are the
            most common ones. None for all.

    Raises:
        OptionError: an unknown quantization, or a number of rows that cannot be.
        ConversionError: the heads cannot be read, are for another model, or the output cannot be written.
    """
    scheme = _scheme(quantization or DEFAULT)
    check_file(output, ".onnx", force)
    heads = read(source)
    tokens = _rows(heads, target, rows)
    return _written(heads, target, output, (quantization or DEFAULT, scheme), tokens, force=force)


def _written(
    heads: MedusaHeads,
    target: HeadTarget,
    output: Path,
    quantization: tuple[str, Scheme],
    tokens: Sequence[range],
    *,
    force: bool,
) -> Iterator[ConversionProgress]:
    count = sum(map(len, tokens))
    made = _Graph(heads, quantization[1], tokens, min(GUESSES, count))
    if made.layout.size > _LARGEST:
        raise ConversionError(
            f"{output} would have {made.layout.size:,} bytes, more than an ONNX file can; choose fewer rows or bits"
        )
    metadata = {
        "edgespec.head": "medusa",
        "edgespec.head.format": "1",
        "edgespec.head.heads": str(len(heads.outputs)),
        "edgespec.head.width": str(heads.width),
        "edgespec.head.rows": str(count),
        "edgespec.head.guesses": str(min(GUESSES, count)),
        "edgespec.head.parameters": str(heads.parameters()),
        "edgespec.head.target": target.name,
        "edgespec.head.target_tokens": str(target.tokens),
        "edgespec.head.labels": json.dumps(target.labels),
        "edgespec.quantization": quantization[0],
    }
    with scratch() as folder:
        path = folder / "weights"
        try:
            with path.open("xb") as file, OrderedThreadPool() as pool:
                file.truncate(made.layout.size)
                done = 0
                for matrix in made.layout.matrices:
                    for name, size in matrix.write(file, pool):
                        done += size
                        yield ConversionProgress(name, done, made.parameters)
        except OSError as error:
            raise ConversionError(reason(error, path, made.layout.size)) from error
        data = _inlined(made.model(metadata), path)
    with atomic_file(output, len(data), force) as file:
        file.write(data)
    yield ConversionProgress("done", made.parameters, made.parameters)


def _inlined(model: onnx.ModelProto, weights: Path) -> bytes:
    """The model with its weights, as one file."""
    with weights.open("rb") as file:
        for tensor in model.graph.initializer:
            if tensor.data_location == TensorProto.EXTERNAL:
                place = {entry.key: entry.value for entry in tensor.external_data}
                file.seek(int(place["offset"]))
                tensor.raw_data = file.read(int(place["length"]))
                tensor.ClearField("external_data")
                tensor.data_location = TensorProto.DEFAULT
    data: bytes = model.SerializeToString()
    return data


class _Graph(Nodes):
    """The graph of all heads."""

    def __init__(self, heads: MedusaHeads, scheme: Scheme, tokens: Sequence[range], guesses: int) -> None:
        super().__init__(scheme)
        self.parameters = 0
        count = len(heads.outputs)
        self._input("hidden", TensorProto.FLOAT, (1, heads.width))
        self._output("tokens", TensorProto.INT64, (count, guesses))
        self._output("logs", TensorProto.FLOAT, (count, guesses))
        rows = [self._head(heads, head, tokens) for head in range(count)]
        logits = self._node("Concat", rows, "logits", {"axis": 0}) if count > 1 else rows[0]
        names = ("best.logits", "best.rows")
        self._node("TopK", (logits, self._constant("guesses", np.array([guesses]))), names, {"axis": -1})
        total = self._node("ReduceLogSumExp", (logits, self._constant("last", np.array([-1]))), "total")
        self._node("Sub", ("best.logits", total), "logs")
        ids = np.concatenate([np.arange(part.start, part.stop) for part in tokens])
        ids = np.array(heads.d2t, np.int64)[ids] if heads.d2t else ids.astype(np.int64)
        self._node("Gather", (self._constant("d2t", ids), "best.rows"), "tokens")

    def _head(self, heads: MedusaHeads, head: int, tokens: Sequence[range]) -> str:
        """The logits of a head [1, rows]."""
        x = "hidden"
        for layer, (weight, bias) in enumerate(heads.blocks[head]):
            name = f"heads.{head}.{layer}"
            product = self._multiplied(name, self._reserved((weight,), self._scheme.matrices), x, f"{name}.linear")
            (place,) = self._reserved((bias,), Unquantized(FLOAT)).places
            shift = self._stored(f"{name}.bias", place, bias.shape)
            change = self._node("Add", (product, shift), f"{name}.biased")
            active = self._node("QuickGelu", (change,), f"{name}.active", {"alpha": 1.0}, MS)  # SiLU
            x = self._node("Add", (x, active), f"{name}.sum")
        parts = tuple(heads.outputs[head].rows(part) for part in tokens)
        matrix = self._reserved(parts, self._scheme.ends)
        return self._multiplied(f"heads.{head}.output", matrix, x, f"heads.{head}.logits")

    def _reserved(self, sources: tuple[StoredTensor, ...], packing: Any) -> Any:
        self.parameters += sum(int(np.prod(source.shape)) for source in sources)
        return self.layout.matrix(sources, packing)


def _scheme(quantization: str) -> Scheme:
    known = {name: scheme for name, scheme in SCHEMES.items() if not scheme.half}
    if quantization not in known:
        raise OptionError(f"unknown quantization {quantization!r} of a head; known: {', '.join(known)}")
    return known[quantization]


def _tensors(source: Path) -> Mapping[str, StoredTensor]:
    if source.is_file():
        return checkpoint.tensors(source)
    if not source.is_dir():
        raise ConversionError(f"{source} is neither a file nor a folder; give a head's file of weights, or its folder")
    found = next((source / name for name in _FILES if (source / name).is_file()), None)
    return checkpoint.folder_tensors(source) if found is None else checkpoint.tensors(found)


def _named(tensors: Mapping[str, StoredTensor]) -> Mapping[str, StoredTensor]:
    """The tensors of heads, by their names without a prefix."""
    own = {name.removeprefix(_PREFIX): each for name, each in tensors.items() if name.startswith(_PREFIX)}
    return own or tensors


def _take(
    source: Path, found: dict[tuple[int, int, str], StoredTensor], head: int, layer: int, kind: str
) -> StoredTensor:
    try:
        return found.pop((head, layer, kind))
    except KeyError:
        raise ConversionError(f"{source} lacks the tensor {head}.{layer}.{kind} of a head; fetch it again") from None


def _listed(stored: StoredTensor, rows: int) -> tuple[int, ...]:
    """The tokens of a trimmed head."""
    if stored.dtype != "I64" or stored.shape != (rows,):
        raise ConversionError(
            f"{stored.path}: d2t is {stored.dtype} {list(stored.shape)}, expected I64 [{rows}]; fetch the heads again"
        )
    with stored.path.open("rb") as file:
        file.seek(stored.offset)
        found = np.frombuffer(file.read(stored.nbytes), "<i8")
    if len(found) != rows or found[0] < 0 or (np.diff(found) <= 0).any():
        raise ConversionError(f"{stored.path}: d2t has no ascending tokens; fetch the heads again")
    return tuple(found.tolist())


def _check_shapes(blocks: Sequence[Sequence[_Block]], outputs: Sequence[StoredTensor]) -> None:
    if len(outputs[0].shape) != 2 or not all(outputs[0].shape):
        raise ConversionError(f"{outputs[0].path}: {outputs[0].name} is {list(outputs[0].shape)}; expected a matrix")
    rows, width = outputs[0].shape
    wanted: list[tuple[StoredTensor, tuple[int, ...]]] = [(output, (rows, width)) for output in outputs]
    for weight, bias in (block for head in blocks for block in head):
        wanted += [(weight, (width, width)), (bias, (width,))]
    for tensor, shape in wanted:
        if tensor.shape != shape:
            raise ConversionError(
                f"{tensor.path}: {tensor.name} is {list(tensor.shape)}, but {list(shape)} belongs beside "
                f"{outputs[0].name}; fetch the heads again"
            )
        if tensor.dtype not in DTYPES:
            raise ConversionError(f"{tensor.path}: {tensor.name} is {tensor.dtype}; F32, F16 and BF16 are supported")


def _rows(heads: MedusaHeads, target: HeadTarget, rows: int | None) -> tuple[range, ...]:
    """The rows that the heads keep, as ranges."""
    if heads.width != target.width:
        raise ConversionError(
            f"{heads.source} reads states of {heads.width} numbers, those of {target.name} have {target.width}: it was "
            "made for another model; give that one with --for"
        )
    if heads.d2t and heads.d2t[-1] >= target.tokens:
        raise ConversionError(
            f"{heads.source} guesses the token {heads.d2t[-1]}, and {target.name} has {target.tokens}: it was made for "
            "another model; give that one with --for"
        )
    if not heads.d2t and abs(heads.rows - target.tokens) > _PADDING:
        raise ConversionError(
            f"{heads.source} has heads of {heads.rows} tokens, and {target.name} has {target.tokens}: it was made for "
            "another model; give that one with --for"
        )
    own = heads.d2t or tuple(range(min(heads.rows, target.tokens)))
    if rows is None:
        return _ranges(range(len(own)))
    if not _LEAST <= rows <= len(own):
        raise OptionError(f"the head cannot have {rows} rows; give a number from {_LEAST} to {len(own)}")
    control = {*target.control}
    kept = [row for row, token in enumerate(own) if token in control][:rows]
    others = np.setdiff1d(np.arange(len(own)), kept)[: rows - len(kept)].tolist()
    return _ranges(sorted({*kept, *others}))


def _ranges(tokens: Sequence[int]) -> tuple[range, ...]:
    found: list[range] = []
    for token in tokens:
        if found and token == found[-1].stop:
            found[-1] = range(found[-1].start, token + 1)
        else:
            found.append(range(token, token + 1))
    return tuple(found)
