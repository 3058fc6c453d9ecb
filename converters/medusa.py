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

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from onnx import TensorProto

from edgespec.converters import ConversionProgress, head_file, head_kinds
from edgespec.converters.atomic_file import check_file
from edgespec.converters.head_file import DEFAULT, PADDING, HeadNodes
from edgespec.converters.head_kinds import MEDUSA_FILES, MEDUSA_NAME, MEDUSA_PREFIX
from edgespec.converters.head_target import HeadTarget
from edgespec.converters.onnx_nodes import Scheme
from edgespec.converters.stored_tensor import DTYPES, StoredTensor
from edgespec.errors import ConversionError

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


def read(source: Path) -> MedusaHeads:
    """The heads in `source`, a file of weights or a folder.

    ConversionError if they are incomplete, or have tensors that Medusa heads do not have.
    """
    tensors = dict(_named(head_kinds.tensors(source)))
    listed = tensors.pop("d2t", None)
    if not tensors:
        raise ConversionError(
            f"{source} has no Medusa heads; expected {MEDUSA_FILES[0]}, {MEDUSA_FILES[1]}, or tensors {MEDUSA_PREFIX}*"
        )
    found: dict[tuple[int, int, str], StoredTensor] = {}
    for name, tensor in tensors.items():
        if (parts := MEDUSA_NAME.fullmatch(name)) is None:
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
    quantization = quantization or DEFAULT
    scheme = head_file.scheme(quantization)
    check_file(output, ".onnx", force)
    heads = read(source)
    own = _own(heads, target)
    kept = head_file.kept(own, target, rows)
    made = _Graph(heads, scheme, kept, head_file.chosen(own, kept))
    props = head_file.metadata("medusa", target, sum(map(len, kept)), quantization)
    return head_file.write(made, {**props, "edgespec.head.heads": str(len(heads.outputs))}, output, force=force)


class _Graph(HeadNodes):
    """The graph of all heads."""

    def __init__(self, heads: MedusaHeads, scheme: Scheme, kept: Sequence[range], tokens: Sequence[int]) -> None:
        super().__init__(scheme)
        count = len(heads.outputs)
        self._input("hidden", TensorProto.FLOAT, (1, heads.width))
        rows = [self._head(heads, head, kept) for head in range(count)]
        logits = self._node("Concat", rows, "logits", {"axis": 0}) if count > 1 else rows[0]
        self._best(logits, tokens, count)

    def _head(self, heads: MedusaHeads, head: int, kept: Sequence[range]) -> str:
        """The logits of a head [1, rows]."""
        x = "hidden"
        for layer, (weight, bias) in enumerate(heads.blocks[head]):
            name = f"heads.{head}.{layer}"
            product = self._multiplied(name, self._reserved((weight,), self._scheme.matrices), x, f"{name}.linear")
            change = self._node("Add", (product, self._vector(f"{name}.bias", bias)), f"{name}.biased")
            x = self._node("Add", (x, self._silu(change, f"{name}.active")), f"{name}.sum")
        matrix = self._reserved(tuple(heads.outputs[head].rows(part) for part in kept), self._scheme.ends)
        return self._multiplied(f"heads.{head}.output", matrix, x, f"heads.{head}.logits")


def _named(tensors: Mapping[str, StoredTensor]) -> Mapping[str, StoredTensor]:
    """The tensors of heads, by their names without a prefix."""
    own = {name.removeprefix(MEDUSA_PREFIX): each for name, each in tensors.items() if name.startswith(MEDUSA_PREFIX)}
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


def _own(heads: MedusaHeads, target: HeadTarget) -> Sequence[int]:
    """The target's token of each row."""
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
    if not heads.d2t and abs(heads.rows - target.tokens) > PADDING:
        raise ConversionError(
            f"{heads.source} has heads of {heads.rows} tokens, and {target.name} has {target.tokens}: it was made for "
            "another model; give that one with --for"
        )
    return heads.d2t or range(min(heads.rows, target.tokens))
