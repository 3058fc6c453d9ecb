"""Folders that appear under their name when they are complete, or not at all."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from edgespec.converters.atomic_file import beside, check_parent, check_room, reason, sweep, sync_folder
from edgespec.errors import ConversionError

_CREATED = (errno.ENOTEMPTY, errno.EEXIST)


def check_folder(output: Path, foreign: Callable[[Path], str], force: bool) -> None:
    """ConversionError unless `output` can be created or replaced as a folder.

    An empty folder is replaced. One with files is replaced only with `force`, and only if `foreign`, which names a file
    that no conversion made, returns an empty string.
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
def atomic_folder(output: Path, size: int, replace: bool) -> Iterator[Path]:
    """A folder to fill, which becomes `output` at the end of the block, and is deleted if the block raises.

    It is beside the output under a name that ends in `.part`.

    Args:
        output: the path of the finished folder; an empty folder there is replaced.
        size: its bytes, for which there must be space on the disk.
        replace: replace a folder with files as well.

    Raises:
        ConversionError: there is not enough space, or a file cannot be created, written or renamed.
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
    """Rename `part` to `output`. With `replace` an existing output is replaced, also if another process creates one."""
    old = beside(output, "old")
    try:
        while not _renamed(part, output):
            if not replace:
                raise FileExistsError
            shutil.rmtree(old, ignore_errors=True)
            with suppress(FileNotFoundError):  # another process moved it
                output.rename(old)
    except BaseException:
        if old.exists() and not output.exists():
            old.rename(output)
        raise
    finally:
        shutil.rmtree(old, ignore_errors=True)
    sync_folder(output.parent)


def _renamed(part: Path, output: Path) -> bool:
    """Rename `part` to `output`; False if something other than an empty folder has that name."""
    with suppress(OSError):
        output.rmdir()  # removes an empty folder, which Windows cannot replace by a rename
    if output.exists() or output.is_symlink():
        return False
    try:
        part.rename(output)
    except OSError as error:
        if output.exists() or error.errno in _CREATED:  # created meanwhile, and perhaps moved away again
            return False
        raise
    return True


def _sync(path: Path) -> None:
    if path.is_dir():
        sync_folder(path)
        return
    with path.open("rb+") as file:
        os.fsync(file.fileno())
