"""Checkpoints in, models out: a Hugging Face folder becomes one file that an engine runs. No torch.

    __init__.py     the face: formats, quantizations, convert
    checkpoint.py   config, tokenizer files and safetensors, read in row blocks
    llama.py        what the Llama graph is made of, whatever the output format
    vocabulary.py   the tokenizer as llama.cpp wants it; bytelevel.py and spm.py are its two kinds
    proof.py        that llama.cpp and the original tokenizer agree on the texts of probes.py and its own
    card.py         name and licence, chat templates, sampling defaults
    quantize.py     llama.cpp's own quantizer, block by block
    native.py       the few calls into llama.cpp that the above need
    whole.py        a file that is there whole or not at all
    gguf.py         the GGUF writer

Importing this package loads none of the converters' dependencies: they come with the first call.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from edgespec.errors import ConversionError, OptionError

_FORMATS = ("gguf", "onnx")  # each is the name of a module here with `quantizations`, `check` and `write`


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
    """The names that `convert` takes as `quantization` with this format. OptionError if that is unknown."""
    return tuple(_writer(fmt).quantizations())


def convert(
    source: Path, output: Path, *, fmt: str = "gguf", quantization: str = "q8_0", force: bool = False
) -> Iterator[Progress | Note]:
    """Convert the checkpoint folder `source` into the one file `output`.

    The call itself checks options and paths and reads the checkpoint's headers: OptionError or
    ConversionError at once. The work is done by iterating. The output appears under its name when the
    iterator ends, and never otherwise: after an error, an interruption or `close()` nothing is left behind.
    """
    source, output, quantization = Path(source), Path(output), quantization.lower()
    writer = _writer(fmt)
    writer.check(quantization)
    _check_output(output, fmt, force)
    checkpoint = import_module("edgespec.converters.checkpoint").Checkpoint.open(source)
    steps: Iterator[Progress | Note] = writer.write(checkpoint, output, quantization, force)
    return steps


def _writer(fmt: str) -> Any:
    if fmt not in _FORMATS:
        raise OptionError(f"unknown format {fmt!r}; known: {', '.join(_FORMATS)}")
    return import_module(f"edgespec.converters.{fmt}")


def _check_output(output: Path, fmt: str, force: bool) -> None:
    try:
        _check_path(output, fmt, force)
    except OSError as error:  # a name too long, say, or a folder that may not be searched
        raise ConversionError(f"the output {output} cannot be written: {error.strerror}; choose another") from error


def _check_path(output: Path, fmt: str, force: bool) -> None:
    if fmt != "onnx" and output.exists() and not output.is_file():
        raise ConversionError(f"the output {output} is a folder or a device; give the name of a file")
    if fmt != "onnx" and output.suffix.lower() != f".{fmt}":
        raise ConversionError(f"the output {output} must end in .{fmt}, by which engines know it")
    if output.exists() and not force:
        raise ConversionError(f"the output {output} exists; choose another name, or --force to overwrite it")
    if not output.parent.is_dir():
        raise ConversionError(f"the output folder {output.parent} does not exist; create it first")
    if not os.access(output.parent, os.W_OK):
        raise ConversionError(f"the output folder {output.parent} cannot be written; choose another")
