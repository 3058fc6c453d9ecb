"""Conversion of checkpoints to models that an engine runs."""

from __future__ import annotations

import hashlib
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import ConversionError
from ..storage.cache import cache_folder
from ..storage.leftovers import sweep
from .job import Job

if TYPE_CHECKING:
    from edgespec.converters import ConversionProgress, Note


def run(steps: Iterator[ConversionProgress | Note], job: Job) -> None:
    """Do the steps of a conversion. Nothing is left behind if one fails, or if the job is stopped: Interrupted."""
    from edgespec.converters import Note  # noqa: PLC0415

    try:
        for step in steps:
            if isinstance(step, Note):
                job.notice("convert", f"Note: {step.text}")
            else:
                job.progress("convert", step.what, step.done, step.total)
    finally:
        if isinstance(steps, Generator):
            steps.close()  # removes incomplete files now, not at garbage collection


def converted(path: Path, job: Job) -> Path:
    """`path`; if it is the folder of a checkpoint, the model that it was converted to, once.

    Raises:
        ConversionError: it cannot be converted, or the cache cannot be written.
        Interrupted: the job was stopped.
    """
    try:
        inside = {each.suffix.lower() for each in path.iterdir()} if path.is_dir() else set()
    except OSError:  # the error is reported when it is opened
        return path
    if not inside & {".safetensors", ".bin"} or inside & {".gguf", ".onnx", ".xml"}:
        return path
    return _of_checkpoint(path, job)


def _of_checkpoint(folder: Path, job: Job) -> Path:
    """The GGUF file of a checkpoint in the cache folder, converted now unless it was converted from the same files."""
    from edgespec.converters import chosen_quantization, convert  # noqa: PLC0415
    from edgespec.converters.conversion_cache import CachedConversion  # noqa: PLC0415

    name = folder.resolve()
    digest = hashlib.sha256(str(name).encode("utf-8", "replace")).hexdigest()
    quantization = chosen_quantization("gguf", None)
    output = cache_folder() / "converted" / f"{name.name}-{digest[:12]}.{quantization}.gguf"
    conversion = CachedConversion.of(folder, output, "gguf", quantization)
    if not conversion.is_current:
        job.notice(
            "convert",
            f"{folder} is a checkpoint, so it is converted to {quantization}, once, into {output.parent}; "
            "`edgespec convert` does that with a quantization and a place of your choice",
        )
        try:
            output.parent.mkdir(parents=True, exist_ok=True)
            sweep(output.parent.glob("*.*-????????.part"))  # also those of other checkpoints
        except OSError as error:
            raise ConversionError(
                f"{output.parent} cannot be written: {error.strerror}; EDGESPEC_CACHE moves it"
            ) from error
        run(convert(folder, output, quantization=quantization, force=True), job)
        conversion.record()
    return output


def size(model: Path) -> int:
    """Bytes of a file, or of all files of a folder; a file with several names there counts once."""
    states = [path.stat() for path in [path for path in model.rglob("*") if path.is_file()] or [model]]
    return sum({(state.st_dev, state.st_ino): state.st_size for state in states}.values())
