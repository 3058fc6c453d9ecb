"""A target and its draft, converted into one folder."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from edgespec.converters import Note, Progress, convert
from edgespec.converters.atomic_file import check_parent
from edgespec.converters.conversion_cache import Again
from edgespec.errors import ConversionError
from edgespec.storage import pair_file as pairfile

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


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """The folder of a pair for this process alone: made if need be, and removed again if it stays empty.

    ConversionError if it cannot be made, or another conversion is at work there.
    """
    from huggingface_hub.utils import WeakFileLock  # type: ignore[attr-defined] # noqa: PLC0415

    lock = folder / ".lock"
    with ExitStack() as stack:
        stack.callback(_quietly, folder.rmdir)  # unless something is in it, as should be
        try:
            folder.mkdir(exist_ok=True)
            stack.enter_context(WeakFileLock(lock, timeout=0.01))
        except TimeoutError as error:
            raise ConversionError(
                f"another conversion is at work in {folder}; wait until it has ended, or choose another folder"
            ) from error
        except OSError as error:
            raise ConversionError(f"the output {folder} cannot be written: {error.strerror}; choose another") from error
        stack.callback(_quietly, lock.unlink)  # Windows does so itself
        yield


def _quietly(call: Callable[[], None]) -> None:
    with suppress(OSError):
        call()


def convert_pair(folder: Path, parts: Sequence[Part], force: bool) -> Iterator[Progress | Note]:
    """Convert `parts` into `folder`, which is held; what was made there before, of the same files, is kept.

    The call itself checks what `convert` checks. Each part appears whole or not at all, one after the other.
    ConversionError and OptionError as there.
    """
    check_folder(folder, force)
    todo = [_steps(part, force) for part in parts]
    return chain.from_iterable(todo)


def _steps(part: Part, force: bool) -> Iterator[Progress | Note]:
    again = Again.of(part.source, part.output, part.fmt, part.quantization)
    if again.is_there:
        return iter([Note(f"{part.output} was made of the same files before and is kept")])
    steps = convert(part.source, part.output, fmt=part.fmt, quantization=part.quantization, force=force)
    return _noted(steps, again)


def _noted(steps: Iterator[Progress | Note], again: Again) -> Iterator[Progress | Note]:
    yield from steps
    again.keep()
