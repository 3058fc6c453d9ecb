"""The ONNX writer: a folder with a graph for ONNX Runtime, its weights, and the tokenizer's files."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import BinaryIO

import numpy as np
import onnx
from google.protobuf.message import DecodeError

from edgespec.backends.machine import physical_cores
from edgespec.backends.onnx_file import EXIT
from edgespec.backends.onnx_parts import split
from edgespec.backends.parallel import GUESSES, ONNX_MASK
from edgespec.converters import ConversionProgress, Note, auxiliary_files, card, decoder, parallel
from edgespec.converters.atomic_folder import atomic_folder, check_folder
from edgespec.converters.checkpoint import Checkpoint
from edgespec.converters.exit_onnx import check_exit
from edgespec.converters.experts import IN_ONNX, QUANTIZED_IN_ONNX
from edgespec.converters.onnx_graph import GraphBuilder
from edgespec.converters.onnx_nodes import DATA, Scheme
from edgespec.converters.packing import FLOAT, HALF, Blockwise, Packing, Turned, Unquantized, number
from edgespec.converters.recurrence import STATES_IN_ONNX
from edgespec.converters.thread_pool import OrderedThreadPool
from edgespec.errors import ConversionError, OptionError
from edgespec.storage.checksum import digest

DEFAULT = "int8"  # quantization
MODEL = "model.onnx"
#: What a reader has to know beside the graph; the second for models with layers that have a state.
_FORMAT, _RECURRENT = "1", "2"
_LARGEST_GRAPH = 64_000_000  # bytes; ours are thousands
_REPORT = 16_000_000  # parameters between two progress reports of one tensor
# https://onnxruntime.ai/docs/performance/model-optimizations/quantization.html, "When and why do I need to try U8U8?"
_SLOW = "r8 wants a CPU with VNNI or ARM's dot product: on older ones ONNX Runtime has slower products of 8-bit numbers"


def _blocks(bits: int, block: int, half: bool = False) -> Scheme:
    packing = Blockwise(bits, block, HALF if half else FLOAT)
    return Scheme(packing, packing, half)


SCHEMES = {
    "fp32": Scheme(Unquantized(FLOAT), Unquantized(FLOAT)),
    "fp16": Scheme(Unquantized(HALF), Unquantized(HALF), half=True),
    "int8": _blocks(8, 128),
    "int8-fp16": _blocks(8, 128, half=True),
    "int4": _blocks(4, 128),
    "int4-b32": _blocks(4, 32),
    "int4-b64": _blocks(4, 64),
    "int4-b128": _blocks(4, 128),
    "int4-fp16": _blocks(4, 128, half=True),
    # One scale a row is too coarse for some output matrices: of the demo target's likeliest tokens 63% stayed the same.
    "r8": Scheme(Turned(), Blockwise(8, 128, FLOAT)),
}


def quantizations() -> tuple[str, ...]:
    return tuple(SCHEMES)


def check(quantization: str) -> None:
    """OptionError unless this quantization can be made."""
    if quantization not in SCHEMES:
        raise OptionError(f"unknown quantization {quantization!r}; known: {', '.join(SCHEMES)}")


def check_output(output: Path, force: bool) -> None:
    """ConversionError unless the folder `output` can be made, or replaced with `force`."""
    check_folder(output, foreign, force)


def write(
    checkpoint: Checkpoint, output: Path, quantization: str, force: bool, *, exit_layer: int | None = None
) -> Iterator[ConversionProgress | Note]:
    """Convert `checkpoint` into the folder `output`. See `edgespec.converters.convert`."""
    pard = parallel.read(checkpoint)
    graph = _without_head(decoder.read(checkpoint))
    total = graph.parameters()
    _check_graph(checkpoint, graph, quantization)
    if exit_layer is not None:
        check_exit(exit_layer, graph.layers, checkpoint.folder, recurrent=graph.recurrence is not None)
    yield ConversionProgress("the tokenizer", 0, total)
    files = auxiliary_files.read(checkpoint, graph.vocabulary)
    notes = [*graph.notes, *([_SLOW] if quantization == "r8" else []), *([parallel.note(pard)] if pard else [])]
    for note in notes:
        yield Note(note)
    yield ConversionProgress("the plan", 0, total)
    scheme = SCHEMES[quantization]
    made = GraphBuilder(checkpoint, graph, scheme)
    about = {
        **_metadata(checkpoint, graph, made, quantization),
        **({ONNX_MASK: str(pard.mask), GUESSES: str(pard.guesses)} if pard else {}),
        **({EXIT: str(exit_layer)} if exit_layer else {}),
        "edgespec.digest": 64 * "0",  # not known yet
    }
    size = made.layout.size + len(made.model(about).SerializeToString()) + sum(len(data) for data in files.values())
    with atomic_folder(output, size, force) as folder:
        for name, data in files.items():
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_bytes(data)
        with (folder / DATA).open("xb") as file:
            file.truncate(made.layout.size)
            _write_tables(file, checkpoint, graph.context, made)
            yield from _write_matrices(file, made, total)
        yield ConversionProgress("the checksum", total, total)
        about = {**about, "edgespec.digest": digest(folder / DATA, physical_cores())}
        data = made.model(about).SerializeToString()
        if exit_layer:
            split(data, exit_layer, graph.layers)  # whether it is possible
        (folder / MODEL).write_bytes(data)
        yield ConversionProgress("done", total, total)
        check_output(output, force)


def _without_head(graph: decoder.Decoder) -> decoder.Decoder:
    if not graph.head:
        return graph
    return replace(graph, head=False, notes=(*graph.notes, "the head for drafting (mtp) is left out"))


def foreign(folder: Path) -> str:
    """A file in `folder` that no conversion wrote; empty if there is none."""
    known = {MODEL, DATA, *auxiliary_files.NAMES}
    others = sorted(path.name for path in folder.iterdir() if path.name not in known)
    if others:
        return others[0]
    return "" if _is_ours(folder / MODEL) else f"no {MODEL} of edgespec"


def _is_ours(path: Path) -> bool:
    try:
        if path.stat().st_size > _LARGEST_GRAPH:
            return False
        model = onnx.load_model(path, load_external_data=False)
    except (OSError, DecodeError):
        return False
    return any(entry.key == "edgespec.format" for entry in model.metadata_props)


def _check_graph(checkpoint: Checkpoint, graph: decoder.Decoder, quantization: str) -> None:
    if graph.recurrence is not None and graph.family.gguf not in STATES_IN_ONNX:
        raise ConversionError(
            f"{checkpoint.folder}: ONNX Runtime has no operator for the recurrent layers of {graph.family.gguf} models "
            "(Mamba 2) on CPUs; convert to gguf"
        )
    if graph.gemma4 is not None:
        raise ConversionError(
            f"{checkpoint.folder}: layers with heads of different widths are not converted to onnx; convert to gguf"
        )
    if graph.experts is not None:
        _check_experts(checkpoint, graph, SCHEMES[quantization].matrices)
    if graph.head_dim % 16 or graph.rope.width % 16:
        raise ConversionError(
            f"{checkpoint.folder}: heads of {graph.head_dim}, {graph.rope.width} of it turned, are not supported by "
            "ONNX Runtime's attention, which takes multiples of 16; convert to gguf"
        )


def _check_experts(checkpoint: Checkpoint, graph: decoder.Decoder, packing: Packing) -> None:
    if graph.family.model_type not in IN_ONNX:
        raise ConversionError(
            f"{checkpoint.folder}: the mixtures of experts of {graph.family.gguf} models are not converted to onnx; "
            "convert to gguf"
        )
    if isinstance(packing, Turned):
        raise ConversionError(
            f"{checkpoint.folder}: ONNX Runtime computes no experts of this quantization; take int8 or int4"
        )
    if isinstance(packing, Unquantized) and graph.family.model_type in QUANTIZED_IN_ONNX:
        raise ConversionError(
            f"{checkpoint.folder}: ONNX Runtime weights the experts of {graph.family.gguf} models only where they are "
            "quantized; take int8 or int4"
        )


def _write_tables(file: BinaryIO, checkpoint: Checkpoint, context: int, made: GraphBuilder) -> None:
    """cos and sin of position times frequency, a thousand positions at a time."""
    try:
        _write_rotations(file, context, made)
    except ValueError as error:
        raise ConversionError(
            f"{checkpoint.folder}: the scaling of its rotations is too large for this quantization; try fp32"
        ) from error


def _write_rotations(file: BinaryIO, context: int, made: GraphBuilder) -> None:
    for place, rope, function in made.tables:
        frequencies, magnitude = rope.frequencies(), rope.scaling.magnitude
        for start in range(0, context, 1024):
            positions = np.arange(start, min(start + 1024, context))
            angles = np.outer(positions, frequencies)
            place.write(file, start, number(magnitude * function(angles), place.part.dtype))


def _write_matrices(file: BinaryIO, made: GraphBuilder, total: int) -> Iterator[ConversionProgress]:
    done = reported = 0
    name = ""
    with OrderedThreadPool() as pool:
        for matrix in made.layout.matrices:
            for source, size in matrix.write(file, pool):
                done += size
                if source != name or done - reported >= _REPORT:
                    name, reported = source, done
                    yield ConversionProgress(name, done, total)


def _metadata(
    checkpoint: Checkpoint, graph: decoder.Decoder, made: GraphBuilder, quantization: str
) -> Mapping[str, str]:
    scheme = SCHEMES[quantization]
    even = any(isinstance(p, Blockwise) and p.block > 32 for p in (scheme.matrices, scheme.ends))
    values = {
        "version": _version(),
        "format": _RECURRENT if graph.recurrence is not None else _FORMAT,
        "quantization": quantization,
        "name": card.read(checkpoint).name,
        "layers": graph.layers,
        "kv_heads": graph.kv_heads,
        "head_dim": graph.head_dim,
        "hidden": graph.hidden,
        "vocabulary": graph.vocabulary,
        "context": graph.context,
        "parameters": graph.parameters(),
        "weights": _fingerprint(made),
        "data_bytes": made.layout.size,
        "even": int(even),
        **({"experts": graph.experts.count} if graph.experts else {}),
        **_recurrence(graph),
    }
    return {f"edgespec.{key}": str(value) for key, value in values.items()}


def _recurrence(graph: decoder.Decoder) -> Mapping[str, str | int]:
    """Which layers have a state, and its shape."""
    if (sizes := graph.recurrence) is None:
        return {}
    layers = ",".join(str(layer) for layer in range(graph.layers) if graph.is_recurrent(layer))
    found: dict[str, str | int] = {"recurrent_layers": layers, "kernel": sizes.kernel}
    if not sizes.heads:
        return {**found, "channels": graph.hidden}
    state = {"state_heads": sizes.heads, "state_key": sizes.state, "state_value": sizes.head}
    return {**found, "channels": sizes.channels, **state}


def _fingerprint(made: GraphBuilder) -> str:
    """A hash of names, types and shapes of the weights, on which the price of a pass depends."""
    tensors = sorted((name, t.data_type, tuple(t.dims)) for name, t in made.initializers.items())
    return hashlib.sha256(repr(tensors).encode()).hexdigest()


def _version() -> str:
    try:
        return version("edgespec")
    except PackageNotFoundError:  # run from a bare checkout
        return ""
