"""Conversion of Hugging Face checkpoints to the formats that the engines run, without torch.

    __init__.py          the interface: formats, quantizations, convert
    checkpoint.py        config, tokenizer files and weights of a checkpoint
    torch_file.py        the tensors of a PyTorch file; torch_pickle.py: their list, of which nothing is executed
    stored_tensor.py     one tensor of a file of weights, read in blocks of rows
    experts.py           mixtures of experts: the three layouts of their tensors
    roles.py             the tensors of a graph by role, and their shapes
    recurrence.py        the sizes of layers that keep a state; gemma4.py: what only Gemma 4 has
    mxfp4.py             gpt-oss's 4-bit floats, copied into ggml's blocks
    families.py          the differences of each model family from Llama
    config.py            config.json, every value checked
    unsupported.py       hints for architectures that only llama.cpp runs
    decoder.py           the graph of a decoder, independent of the output format; rope.py: its position embeddings
    vocabulary.py        the tokenizer as GGUF stores it; bytelevel.py and spm.py: the two kinds of BPE
    tokenizer_check.py   compares the engine's tokenizer with the original; tokenizer_texts.py: on which texts
    card.py              name and licence, chat templates, sampling defaults
    thread_pool.py       a thread pool that keeps the order of a stream
    atomic_file.py       files that appear complete or not at all; atomic_folder.py: folders
    pair.py              a target and a draft into one folder
    compatibility.py     whether two checkpoints can be target and draft
    conversion_cache.py  whether an output is up to date

    gguf.py              the GGUF writer; gguf_graph.py: the metadata that llama.cpp reads for a graph
    head_rows.py         the head of a GGUF file, with fewer rows
    head_kinds.py        which kind of head a checkpoint holds
    eagle3.py            EAGLE-3 heads
    head_target.py       the target of a head; target_weights.py: its embeddings and outputs
    quantize.py          llama.cpp's own quantizer, block by block
    native.py            the calls into llama.cpp that the GGUF writer needs

    onnx.py              the ONNX writer
    onnx_graph.py        the nodes of the graph of a decoder; onnx_nodes.py: of any graph
    onnx_weights.py      nodes over its weights; onnx_mlp.py: of an MLP; onnx_recurrence.py: of a recurrent layer
    exit_layer.py        layers of a GGUF file as the draft of the whole
    head_file.py         heads as ONNX files
    medusa.py            Medusa heads
    eagle.py             EAGLE-1 and EAGLE-2 heads
    packing.py           numbers in the layouts of ONNX Runtime's operators
    layout.py            the offset of each array in the file of weights
    auxiliary_files.py   tokenizer, templates, configs and licence beside the graph
    tokenizer_json.py    a tokenizer.json for SentencePiece models that lack one

Importing this package loads none of the converters' dependencies: they are loaded by the first call.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from edgespec.errors import ConversionError, OptionError
from edgespec.extras import require

#: Each is the name of a module here with `DEFAULT`, `quantizations`, `check`, `check_output` and `write`, and of the
#: package that the module writes with.
_FORMATS = ("gguf", "onnx")


@dataclass(frozen=True, slots=True)
class ConversionProgress:
    """`what` is the tensor or stage being worked on; `done` and `total` count parameters."""

    what: str
    done: int
    total: int


@dataclass(frozen=True, slots=True)
class Note:
    """A line for the user to keep: in what the result is not quite the original."""

    text: str


def formats() -> tuple[str, ...]:
    """The names that `convert` takes as `fmt`."""
    return _FORMATS


def quantizations(fmt: str) -> tuple[str, ...]:
    """The names that `convert` takes as `quantization` with this format.

    OptionError if that is unknown, MissingPackage without the package that writes it.
    """
    return tuple(_writer(fmt).quantizations())


def chosen_quantization(fmt: str, name: str | None) -> str:
    """The quantization of this name as the format writes it, its default without one. OptionError for one unknown."""
    writer = _writer(fmt)
    quantization = (name or str(writer.DEFAULT)).lower()
    writer.check(quantization)
    return quantization


def check_output(output: Path, fmt: str, *, force: bool) -> None:
    """Raise what `convert` would raise for this output: before a checkpoint is fetched, say.

    Raises:
        OptionError: the format is unknown.
        MissingPackage: the package that writes the format is not installed.
        ConversionError: the output cannot be written, or exists and may not be replaced.
    """
    try:
        _writer(fmt).check_output(output, force)
    except OSError as error:  # a name too long, say, or a folder that may not be searched
        raise ConversionError(f"the output {output} cannot be written: {error.strerror}; choose another") from error


def convert(
    source: Path,
    output: Path,
    *,
    fmt: str = "gguf",
    quantization: str = "",
    force: bool = False,
    exit_layer: int | None = None,
) -> Iterator[ConversionProgress | Note]:
    """Convert the checkpoint folder `source` into `output`: one file for gguf, a folder for onnx.

    The call itself checks options and paths and reads the checkpoint's headers: OptionError, MissingPackage or
    ConversionError at once. The work is done by iterating. The output appears under its name when the
    iterator ends, and never otherwise: after an error, an interruption or `close()` nothing is left behind.

    Args:
        exit_layer: of an onnx model, how many of its first layers draft for it; None for none.
    """
    source, output = Path(source), Path(output)
    writer = _writer(fmt)
    quantization = chosen_quantization(fmt, quantization)
    check_output(output, fmt, force=force)
    checkpoint = import_module("edgespec.converters.checkpoint").Checkpoint.open(source)
    more = {} if exit_layer is None else {"exit_layer": exit_layer}
    steps: Iterator[ConversionProgress | Note] = writer.write(checkpoint, output, quantization, force, **more)
    return steps


def mark_exit(source: Path, output: Path, layer: int, *, force: bool = False) -> Iterator[ConversionProgress]:
    """Write the ONNX model in the folder `source` into the folder `output`, with its first `layer` layers as its draft.

    Raises:
        OptionError, MissingPackage, ConversionError, ModelFileError: as `convert`; there is no such layer.
    """
    require("onnx", "marking an exit layer")
    steps: Iterator[ConversionProgress] = import_module("edgespec.converters.exit_onnx").mark(
        source, output, layer, force=force
    )
    return steps


def convert_head(
    source: Path, target: Path, output: Path, *, quantization: str = "", rows: int | None = None, force: bool = False
) -> Iterator[ConversionProgress | Note]:
    """Convert the head in `source`, a folder or a file of weights, for the model `target` into the file `output`.

    As `convert`: what can be checked is checked at once, and nothing is left behind by a conversion that fails.

    Args:
        target: a GGUF file, or the folder of a checkpoint; but for EAGLE-3 heads also that of a converted ONNX model.
        rows: the tokens that Medusa and EAGLE heads guess, the most common ones; None for all.

    Raises:
        OptionError, MissingPackage, ConversionError, ModelFileError: as `convert`; a head of an unknown kind, or one
            for another model.
    """
    source, target, output = Path(source), Path(target), Path(output)
    kind = import_module("edgespec.converters.head_kinds").kind_of(source)
    require("gguf" if kind == "eagle3" else "onnx", "converting a head")
    described = import_module("edgespec.converters.head_target").HeadTarget.of(target)
    writer = import_module(f"edgespec.converters.{kind}")
    steps: Iterator[ConversionProgress | Note] = writer.write(
        source, described, output, quantization.lower(), rows=rows, force=force
    )
    return steps


def _writer(fmt: str) -> Any:
    if fmt not in _FORMATS:
        raise OptionError(f"unknown format {fmt!r}; known: {', '.join(_FORMATS)}")
    require(fmt, f"converting to {fmt}")
    return import_module(f"edgespec.converters.{fmt}")
