"""Files that appear under their name when they are complete, or not at all."""

from __future__ import annotations

import errno
import glob
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from edgespec.errors import ConversionError
from edgespec.storage import leftovers

_OURS = re.compile(r"\.([0-9a-f]{1,8}-)?[0-9a-f]{8}\.(part|old)")  # the suffix of a temporary name
_SCRATCH = "edgespec-scratch"


@contextmanager
def scratch() -> Iterator[Path]:
    """A temporary folder. ConversionError if it cannot be written."""
    try:
        leftovers.sweep(Path(tempfile.gettempdir()).glob(f"{_SCRATCH}.*-????????.part"))
        with tempfile.TemporaryDirectory(prefix=f"{_SCRATCH}{leftovers.marked()}", suffix=".part") as folder:
            yield Path(folder)
    except OSError as error:
        raise ConversionError(
            f"temporary files cannot be written to {tempfile.gettempdir()}: {error.strerror or error}; "
            "free space there or point TMPDIR to another folder"
        ) from error


def check_parent(output: Path) -> None:
    """ConversionError unless the folder of `output` exists and can be written."""
    if not output.parent.is_dir():
        raise ConversionError(f"the output folder {output.parent} does not exist; create it first")
    if not os.access(output.parent, os.W_OK):
        raise ConversionError(f"the output folder {output.parent} cannot be written; choose another")


def check_file(output: Path, suffix: str, force: bool) -> None:
    """ConversionError unless `output` can become a file with this suffix, overwritten only with `force`."""
    if output.exists() and not output.is_file():
        raise ConversionError(f"the output {output} is a folder or a device; give the name of a file")
    if output.suffix.lower() != suffix:
        raise ConversionError(f"the output {output} must end in {suffix}, by which engines recognize it")
    if output.exists() and not force:
        raise ConversionError(f"the output {output} exists; choose another name, or --force to overwrite it")
    check_parent(output)


@contextmanager
def atomic_file(output: Path, size: int, force: bool) -> Iterator[BinaryIO]:
    """A binary file to write, which becomes `output` at the end of the block, and is deleted if the block raises.

    It is in the output's folder under a name that ends in `.part`, so that the last step is a rename.

    Args:
        output: the path of the finished file.
        size: its bytes, for which there must be space on the disk.
        force: overwrite an existing file.

    Raises:
        ConversionError: there is not enough space, or the file cannot be created, written or renamed.
    """
    part = beside(output, "part")
    try:
        sweep(output)
        check_room(output, size)
        with part.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        _settle(part, output, force)
    except OSError as error:
        raise ConversionError(reason(error, output, size)) from error
    finally:
        with suppress(OSError):
            part.unlink(missing_ok=True)


def beside(output: Path, suffix: str) -> Path:
    """A unique temporary name in the folder of `output`, so that several processes can write at once."""
    return leftovers.temporary(output, suffix)


def sweep(output: Path) -> None:
    """Delete the temporary files of killed conversions to `output`.

    The previous output is kept unless there is a new one: a process may have been killed between its two renames.
    """
    found = output.parent.glob(f"{glob.escape(output.name)}.*")
    ours = [path for path in found if _OURS.fullmatch(path.name.removeprefix(output.name))]
    leftovers.sweep(path for path in ours if path.suffix == ".part" or output.exists())


def check_room(output: Path, size: int) -> None:
    """ConversionError unless the disk of `output` has `size` bytes free."""
    free = shutil.disk_usage(output.parent).free
    if size > free:
        raise ConversionError(
            f"not enough space for {output}: it takes {size:,} bytes and {output.parent} has {free:,} free; "
            "free space or choose another folder"
        )


def _settle(part: Path, output: Path, force: bool) -> None:
    if force:
        part.replace(output)
    elif os.name == "nt":
        part.rename(output)  # on Windows this refuses an existing name
    else:
        # A rename would overwrite a file that was created meanwhile; a link fails. Some filesystems lack links.
        try:
            os.link(part, output)
        except FileExistsError:
            raise
        except OSError:
            if output.exists():
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(output)) from None
            part.replace(output)
    sync_folder(output.parent)


def sync_folder(folder: Path) -> None:
    """Sync the folder, so that the new name survives a power failure; not supported by all systems."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def reason(error: OSError, output: Path, size: int) -> str:
    """The error message for a failure to write `output`."""
    if isinstance(error, FileExistsError):
        return f"the output {output} was created by another process meanwhile; choose another name, or --force"
    if error.errno in {errno.ENOSPC, errno.EDQUOT}:
        return f"not enough space for {output}: the disk or quota is full ({size:,} bytes are needed); free space"
    if error.errno == errno.EFBIG:
        return f"{output} would be larger than this system or folder allows ({size:,} bytes); choose another"
    if isinstance(error, PermissionError):
        return f"the folder {output.parent} cannot be written; choose another or change its permissions"
    return f"writing {output} failed: {error.strerror or error}; check the disk or choose another folder"
