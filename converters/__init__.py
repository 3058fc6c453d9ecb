"""Checkpoints in, models out: a Hugging Face folder becomes what an engine runs. No torch.

    __init__.py     the face: formats, quantizations, convert
    checkpoint.py   config, tokenizer files and safetensors; stored.py reads a tensor in row blocks
    experts.py      mixtures of experts, whose tensors are spelt in three ways
    families.py     where each family departs from Llama
    config.py       config.json, each answer checked; elsewhere.py is what to do where it is none of ours
    decoder.py      what a graph is made of, whatever the output format; rope.py is its rotations
    vocabulary.py   the tokenizer as llama.cpp wants it; bytelevel.py and spm.py are its two kinds
    proof.py        that the engine's tokenizer and the original agree on the texts of probes.py and its own
    card.py         name and licence, chat templates, sampling defaults
    pool.py         threads that work on a stream
    whole.py        a file that is there whole or not at all; folder.py is the same of a folder
    pair.py         two checkpoints into one folder; likeness.py compares them, again.py knows what was made before

    gguf.py         the GGUF writer; gguf_graph.py is what llama.cpp is told of a graph
    quantize.py     llama.cpp's own quantizer, block by block
    native.py       the few calls into llama.cpp that GGUF needs

    onnx.py         the ONNX writer
    onnx_graph.py   the nodes
    packing.py      numbers as ONNX Runtime's operators take them
    layout.py       where each array lies in the file of weights
    companions.py   the tokenizer's and other small files; fast.py makes a tokenizer.json where there is none

Importing this package loads none of the converters' dependencies: they come with the first call.
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
class Progress:
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


def convert(
    source: Path, output: Path, *, fmt: str = "gguf", quantization: str = "", force: bool = False
) -> Iterator[Progress | Note]:
    """Convert the checkpoint folder `source` into `output`: one file for gguf, a folder for onnx.

    The call itself checks options and paths and reads the checkpoint's headers: OptionError, MissingPackage or
    ConversionError at once. The work is done by iterating. The output appears under its name when the
    iterator ends, and never otherwise: after an error, an interruption or `close()` nothing is left behind.
    """
    source, output = Path(source), Path(output)
    writer = _writer(fmt)
    quantization = chosen_quantization(fmt, quantization)
    _check_output(writer, output, force)
    checkpoint = import_module("edgespec.converters.checkpoint").Checkpoint.open(source)
    steps: Iterator[Progress | Note] = writer.write(checkpoint, output, quantization, force)
    return steps


def _writer(fmt: str) -> Any:
    if fmt not in _FORMATS:
        raise OptionError(f"unknown format {fmt!r}; known: {', '.join(_FORMATS)}")
    require(fmt, f"converting to {fmt}")
    return import_module(f"edgespec.converters.{fmt}")


def _check_output(writer: Any, output: Path, force: bool) -> None:
    try:
        writer.check_output(output, force)
    except OSError as error:  # a name too long, say, or a folder that may not be searched
        raise ConversionError(f"the output {output} cannot be written: {error.strerror}; choose another") from error
