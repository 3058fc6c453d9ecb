"""A folder of files that is there whole or not at all."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from edgespec.converters.atomic_file import beside, check_parent, check_room, reason, sweep, sync_folder
from edgespec.errors import ConversionError


def check_folder(output: Path, foreign: Callable[[Path], str], force: bool) -> None:
    """ConversionError unless `output` can become a folder.

    An empty folder gives way. One that is not empty is replaced only with `force`, and only if `foreign` finds
    nothing in it: it names what is no work of ours.
    """
    if output.is_symlink() or (output.exists() and not output.is_dir()):
        raise ConversionError(f"the output {output} is a file or a link; give the name of a folder")
    if output.exists() and any(output.iterdir()):
        if not force:
            raise ConversionError(f"the output {output} exists; choose another name, or --force to replace it")
        if name := foreign(output):
            raise ConversionError(
                f"the output {output} holds {name}, which is not of a converted model, so it is not replaced; "
                "choose another name"
            )
    check_parent(output)


@contextmanager
def whole_folder(output: Path, size: int, replace: bool) -> Iterator[Path]:
    """A folder to fill that becomes `output` when the block ends well and vanishes otherwise.

    It lives beside the output, under a name that ends in `.part`. `size` is the number of bytes to come: without
    room for them nothing is started. An empty folder of that name gives way, and with `replace` a full one.
    Failures to create, write or rename raise ConversionError.
    """
    part = beside(output, "part")
    try:
        sweep(output)
        check_room(output, size)
        part.mkdir()
        yield part
        for path in part.rglob("*"):
            _sync(path)
        sync_folder(part)
        _settle(part, output, replace)
    except OSError as error:
        raise ConversionError(reason(error, output, size)) from error
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _settle(part: Path, output: Path, replace: bool) -> None:
    """Give `part` its name. What has it gives way with `replace`, however often another process was first."""
    old = beside(output, "old")
    try:
        while not _renamed(part, output):
            if not replace:
                raise FileExistsError
            shutil.rmtree(old, ignore_errors=True)
            with suppress(FileNotFoundError):  # another took it away
                output.rename(old)
    except BaseException:
        if old.exists() and not output.exists():
            old.rename(output)
        raise
    finally:
        shutil.rmtree(old, ignore_errors=True)
    sync_folder(output.parent)


def _renamed(part: Path, output: Path) -> bool:
    """Whether `part` has the name now; not if a folder with something in it, or anything else, has it."""
    with suppress(OSError):
        output.rmdir()  # an empty folder: Windows renames onto none
    if output.exists() or output.is_symlink():
        return False
    try:
        part.rename(output)
    except OSError:
        if output.exists():  # it came into being just now
            return False
        raise
    return True


def _sync(path: Path) -> None:
    if path.is_dir():
        sync_folder(path)
        return
    with path.open("rb+") as file:
        os.fsync(file.fileno())
