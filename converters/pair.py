"""The conversion of a target and its draft into one folder."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from edgespec.converters import ConversionProgress, Note, convert
from edgespec.converters.atomic_file import check_parent
from edgespec.converters.conversion_cache import CachedConversion
from edgespec.errors import ConversionError
from edgespec.storage import pair_file as pairfile

ROLES = ("target", "draft")


@dataclass(frozen=True, slots=True)
class ModelConversion:
    """The conversion of one model: `source` is a checkpoint's folder, `output` the path in the pair's folder."""

    source: Path
    output: Path
    fmt: str
    quantization: str


def output(folder: Path, role: str, fmt: str) -> Path:
    """The path of the target or the draft of a pair."""
    return folder / (role if fmt == "onnx" else f"{role}.{fmt}")


def check_folder(folder: Path, force: bool) -> None:
    """ConversionError unless `folder` is new or empty or, with `force`, that of a pair."""
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
    ours = {pairfile.NAME, *ROLES, "checkpoint", *(f"{role}.gguf" for role in ROLES)}
    names = sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))
    # The temporary names of killed conversions begin with a model's name.
    if others := [name for name in names if name not in ours and not name.startswith(tuple(f"{n}." for n in ours))]:
        raise ConversionError(
            f"the output {folder} holds {others[0]}, which does not belong to a pair; choose another folder"
        )
    if pairfile.NAME in names and not force:
        raise ConversionError(
            f"the output {folder} holds a pair; choose another folder, or --force to measure it again and to replace "
            "models with other settings"
        )
    check_parent(folder / pairfile.NAME)


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Lock the folder of a pair for this process. It is created if it is missing, and removed if it stays empty.

    ConversionError if it cannot be created, or another conversion has locked it.
    """
    from huggingface_hub.utils import WeakFileLock  # type: ignore[attr-defined] # noqa: PLC0415

    lock = folder / ".lock"
    with ExitStack() as stack:
        stack.callback(_quietly, folder.rmdir)  # fails unless it is empty
        try:
            folder.mkdir(exist_ok=True)
            stack.enter_context(WeakFileLock(lock, timeout=0.01))
        except TimeoutError as error:
            raise ConversionError(
                f"another conversion is running in {folder}; wait until it has ended, or choose another folder"
            ) from error
        except OSError as error:
            raise ConversionError(f"the output {folder} cannot be written: {error.strerror}; choose another") from error
        stack.callback(_quietly, lock.unlink)  # Windows does so itself
        yield


def _quietly(call: Callable[[], None]) -> None:
    with suppress(OSError):
        call()


def convert_pair(folder: Path, parts: Sequence[ModelConversion], force: bool) -> Iterator[ConversionProgress | Note]:
    """Convert `parts` into `folder`, which must be locked; models that are up to date are kept.

    The call itself checks what `convert` checks. The models appear one after the other, each complete or not at all.
    Raises as `convert`.
    """
    check_folder(folder, force)
    todo = [convert_part(part, force) for part in parts]
    return chain.from_iterable(todo)


def convert_part(part: ModelConversion, force: bool) -> Iterator[ConversionProgress | Note]:
    """Convert one model; it is kept if it is up to date. Raises as `convert`."""
    conversion = CachedConversion.of(part.source, part.output, part.fmt, part.quantization)
    if conversion.is_current:
        return iter([Note(f"{part.output} is up to date and is kept")])
    steps = convert(part.source, part.output, fmt=part.fmt, quantization=part.quantization, force=force)
    return _noted(steps, conversion)


def _noted(
    steps: Iterator[ConversionProgress | Note], conversion: CachedConversion
) -> Iterator[ConversionProgress | Note]:
    yield from steps
    conversion.record()
