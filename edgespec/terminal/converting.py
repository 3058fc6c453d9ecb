"""A conversion while a person watches."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import click

from edgespec.converters import Note, Progress, chosen_quantization, convert
from edgespec.converters.again import Again

from ..errors import ConversionError
from ..storage.cache import cache_folder
from ..storage.leftovers import sweep
from .progress import progress


def run(steps: Iterator[Progress | Note], title: str) -> None:
    """Convert with a progress bar; notes stay."""
    with progress(title) as tell:
        for step in steps:
            match step:
                case Note(text):
                    click.echo(f"Note: {text}", err=True)
                case Progress(what, done, total):
                    tell(what, done, total)


def size(model: Path) -> int:
    """Bytes of a file, or of all files of a folder."""
    files = [path for path in model.rglob("*") if path.is_file()] or [model]
    return sum(path.stat().st_size for path in files)


def of_checkpoint(folder: Path) -> Path:
    """The GGUF file of a checkpoint, in the cache: converted now unless it was before, of the same files.

    Raises:
        ConversionError: it cannot be converted, or the cache cannot be written.
    """
    name = folder.resolve()
    digest = hashlib.sha256(str(name).encode("utf-8", "replace")).hexdigest()
    quantization = chosen_quantization("gguf", None)
    output = cache_folder() / "converted" / f"{name.name}-{digest[:12]}.{quantization}.gguf"
    again = Again.of(folder, output, "gguf", quantization)
    if not again.is_there:
        click.echo(
            f"{folder} is a checkpoint, so it is converted to {quantization}, once, into {output.parent}; "
            "`edgespec convert` does that with a quantization and a place of your choice",
            err=True,
        )
        try:
            output.parent.mkdir(parents=True, exist_ok=True)
            sweep(output.parent.glob("*.*-????????.part"))  # of other checkpoints, too: the folder is ours
        except OSError as error:
            raise ConversionError(
                f"{output.parent} cannot be written: {error.strerror}; EDGESPEC_CACHE moves it"
            ) from error
        run(convert(folder, output, quantization=quantization, force=True), f"converting to {quantization}")
        again.keep()
    return output
