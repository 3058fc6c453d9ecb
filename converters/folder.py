"""A folder of files that is there whole or not at all."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from edgespec.converters.whole import check_room, reason, sync_folder
from edgespec.errors import ConversionError


@contextmanager
def whole_folder(output: Path, size: int, replace: bool) -> Iterator[Path]:
    """A folder to fill that becomes `output` when the block ends well and vanishes otherwise.

    It lives beside the output, under a name that ends in `.part`. `size` is the number of bytes to come: without
    room for them nothing is started. An empty folder of that name gives way, and with `replace` a full one.
    Failures to create, write or rename raise ConversionError.
    """
    part = _beside(output, "part")
    try:
        check_room(output, size)
        part.mkdir()
        yield part
        for path in part.iterdir():
            _sync(path)
        sync_folder(part)
        _settle(part, output, replace)
    except OSError as error:
        raise ConversionError(reason(error, output, size)) from error
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _settle(part: Path, output: Path, replace: bool) -> None:
    old = _beside(output, "old")
    if replace and output.exists():
        output.rename(old)
    try:
        with suppress(OSError):
            output.rmdir()  # an empty folder: Windows renames onto none
        if output.exists() or output.is_symlink():
            raise FileExistsError
        part.rename(output)
    except OSError:
        if old.exists():
            old.rename(output)
        raise
    shutil.rmtree(old, ignore_errors=True)
    sync_folder(output.parent)


def _beside(output: Path, suffix: str) -> Path:
    return output.with_name(f"{output.name}.{secrets.token_hex(4)}.{suffix}")


def _sync(path: Path) -> None:
    with path.open("rb+") as file:
        os.fsync(file.fileno())
