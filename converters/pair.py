"""A target and its draft, converted into one folder."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from edgespec import pairfile
from edgespec.converters import Note, Progress, convert
from edgespec.converters.again import Again
from edgespec.converters.whole import check_parent
from edgespec.errors import ConversionError

ROLES = ("target", "draft")


@dataclass(frozen=True, slots=True)
class Part:
    """One of the two: `source` is a checkpoint's folder, `output` what it becomes in the pair's."""

    source: Path
    output: Path
    fmt: str
    quantization: str


def output(folder: Path, role: str, fmt: str) -> Path:
    """Where the target or the draft of a pair lies."""
    return folder / (role if fmt == "onnx" else f"{role}.{fmt}")


def check_folder(folder: Path, force: bool) -> None:
    """ConversionError unless a pair can be made in `folder`: in a new or empty one, or with `force` in a pair's."""
    try:
        _check(folder, force)
    except OSError as error:  # a name too long, say, or a folder that may not be searched
        raise ConversionError(f"the output {folder} cannot be written: {error.strerror}; choose another") from error


def _check(folder: Path, force: bool) -> None:
    if not folder.exists():
        check_parent(folder)
        return
    if not folder.is_dir():
        raise ConversionError(f"the output {folder} is a file; a pair takes the name of a folder")
    ours = {pairfile.NAME, *ROLES, *(f"{role}.gguf" for role in ROLES)}
    names = sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))
    # What a killed conversion left has no name of its own, but a model's and more.
    if others := [name for name in names if name not in ours and not name.startswith(tuple(f"{n}." for n in ours))]:
        raise ConversionError(
            f"the output {folder} holds {others[0]}, which is of no pair, so none is made there; choose another folder"
        )
    if pairfile.NAME in names and not force:
        raise ConversionError(
            f"the output {folder} holds a pair; choose another folder, or --force to measure it anew and to replace "
            "what is made otherwise"
        )
    check_parent(folder / pairfile.NAME)


def convert_pair(folder: Path, parts: Sequence[Part], force: bool) -> Iterator[Progress | Note]:
    """Convert `parts` into `folder`, which is made; one that this made before, of the same files, is kept.

    The call itself checks what `convert` checks. Each part appears whole or not at all, one after the other; a folder
    that stays empty is removed. ConversionError and OptionError as there.
    """
    check_folder(folder, force)
    with suppress(FileExistsError):
        folder.mkdir()
    try:
        todo = [_steps(part, force) for part in parts]
    except BaseException:
        _leave(folder)
        raise
    return _run(folder, todo)


def _steps(part: Part, force: bool) -> Iterator[Progress | Note]:
    again = Again.of(part.source, part.output, part.fmt, part.quantization)
    if again.is_there:
        return iter([Note(f"{part.output} was made of the same files before and is kept")])
    steps = convert(part.source, part.output, fmt=part.fmt, quantization=part.quantization, force=force)
    return _noted(steps, again)


def _noted(steps: Iterator[Progress | Note], again: Again) -> Iterator[Progress | Note]:
    yield from steps
    again.keep()


def _run(folder: Path, todo: Sequence[Iterator[Progress | Note]]) -> Iterator[Progress | Note]:
    try:
        for steps in todo:
            yield from steps
    finally:
        _leave(folder)


def _leave(folder: Path) -> None:
    with suppress(OSError):  # it is not empty: as it should be
        folder.rmdir()
