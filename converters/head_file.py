"""Heads as ONNX files that run beside any engine: what their graphs have in common, and how the file is written.

The weights are in the file itself, whose format allows 2 GiB.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from math import prod
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto

from edgespec.converters import ConversionProgress
from edgespec.converters.atomic_file import atomic_file, reason, scratch
from edgespec.converters.head_target import HeadTarget
from edgespec.converters.layout import Matrix
from edgespec.converters.onnx import SCHEMES
from edgespec.converters.onnx_nodes import MS, Nodes, Scheme
from edgespec.converters.packing import FLOAT, Packing, Unquantized
from edgespec.converters.stored_tensor import StoredTensor
from edgespec.converters.thread_pool import OrderedThreadPool
from edgespec.errors import ConversionError, OptionError

DEFAULT = "int8"  # quantization
GUESSES = 8  #: tokens that a head names at a place
LEAST = 64  #: tokens of a smaller vocabulary
PADDING = 1024  #: tokens by which the rows of a head and the vocabulary of its target may differ
_LARGEST = 2_000_000_000  # bytes of an ONNX file: its format allows 2 GiB


class HeadNodes(Nodes):
    """The graph of a head."""

    def __init__(self, scheme: Scheme) -> None:
        super().__init__(scheme)
        self.parameters = 0

    def _reserved(self, sources: tuple[StoredTensor, ...], packing: Packing) -> Matrix:
        self.parameters += sum(prod(source.shape) for source in sources)
        return self.layout.matrix(sources, packing)

    def _vector(self, name: str, *sources: StoredTensor) -> str:
        (place,) = self._reserved(sources, Unquantized(FLOAT)).places
        return self._stored(name, place, place.part.shape[:1])

    def _silu(self, x: str, output: str) -> str:
        return self._node("QuickGelu", (x,), output, {"alpha": 1.0}, MS)

    def _best(self, logits: str, tokens: Sequence[int], rows: int) -> None:
        """The outputs `tokens` and `logs`: the likeliest of `rows` rows of logits, in the target's numbers, and the
        logarithms of their probabilities among `tokens`, those of the columns."""
        guesses = min(GUESSES, len(tokens))
        self._output("tokens", TensorProto.INT64, (rows, guesses))
        self._output("logs", TensorProto.FLOAT, (rows, guesses))
        names = ("best.logits", "best.rows")
        self._node("TopK", (logits, self._constant("guesses", np.array([guesses]))), names, {"axis": -1})
        total = self._node("ReduceLogSumExp", (logits, self._constant("last", np.array([-1]))), "total")
        self._node("Sub", ("best.logits", total), "logs")
        self._node("Gather", (self._constant("d2t", np.array(tokens, np.int64)), "best.rows"), "tokens")


def scheme(quantization: str) -> Scheme:
    """OptionError for a quantization that heads do not have."""
    known = {name: found for name, found in SCHEMES.items() if not found.half}
    if quantization not in known:
        raise OptionError(f"unknown quantization {quantization!r} of a head; known: {', '.join(known)}")
    return known[quantization]


def kept(own: Sequence[int], target: HeadTarget, rows: int | None) -> tuple[range, ...]:
    """The rows that a head of `rows` tokens keeps, as ranges: control tokens, then those with the lowest numbers.

    Args:
        own: the target's token of each of its rows.
        rows: None for all.

    Raises:
        OptionError: a number of rows that cannot be.
    """
    if rows is None:
        return (range(len(own)),)
    if not LEAST <= rows <= len(own):
        raise OptionError(f"the head cannot have {rows} rows; give a number from {LEAST} to {len(own)}")
    control = {*target.control}
    first = [row for row, token in enumerate(own) if token in control][:rows]
    others = np.setdiff1d(np.arange(len(own)), first)[: rows - len(first)].tolist()
    return _ranges(sorted({*first, *others}))


def _ranges(rows: Sequence[int]) -> tuple[range, ...]:
    found: list[range] = []
    for row in rows:
        if found and row == found[-1].stop:
            found[-1] = range(found[-1].start, row + 1)
        else:
            found.append(range(row, row + 1))
    return tuple(found)


def chosen(own: Sequence[int], parts: Sequence[range]) -> list[int]:
    """The target's tokens of the rows in `parts`."""
    return [own[row] for part in parts for row in part]


def metadata(kind: str, target: HeadTarget, tokens: int, quantization: str) -> dict[str, str]:
    """The properties that all heads have.

    Args:
        tokens: how many tokens it guesses.
    """
    return {
        "edgespec.head": kind,
        "edgespec.head.format": "1",
        "edgespec.head.width": str(target.width),
        "edgespec.head.rows": str(tokens),
        "edgespec.head.guesses": str(min(GUESSES, tokens)),
        "edgespec.head.target": target.name,
        "edgespec.head.target_tokens": str(target.tokens),
        "edgespec.head.labels": json.dumps(target.labels),
        "edgespec.quantization": quantization,
    }


def write(made: HeadNodes, props: Mapping[str, str], output: Path, *, force: bool) -> Iterator[ConversionProgress]:
    """Write the graph `made` with its weights to `output`.

    Raises:
        ConversionError: the file would be too large, or cannot be written; the weights cannot be read or packed.
    """
    if made.layout.size > _LARGEST:
        raise ConversionError(
            f"{output} would have {made.layout.size:,} bytes, more than an ONNX file can; choose fewer rows or bits"
        )
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
        data = _inlined(made.model({**props, "edgespec.head.parameters": str(made.parameters)}), path)
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
