"""Temporary names, files written under them, and the removal of temporary files that killed processes left."""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from secrets import token_hex

_NAME = re.compile(r".*\.(?P<process>[0-9a-f]{1,8})-\w{8}\.\w+")
_FORGOTTEN = 3600.0  # seconds


def marked() -> str:
    """The part of a temporary name with the id of this process, for `sweep`."""
    return f".{os.getpid():x}-"


def temporary(path: Path, suffix: str = "part") -> Path:
    """A unique temporary name in the folder of `path`, to be renamed to `path` at the end."""
    return path.with_name(f"{path.name}{marked()}{token_hex(4)}.{suffix}")


def put(path: Path, text: str, mode: int = 0o666) -> None:
    """Write a file as a whole or not at all; what cannot be encoded becomes "?".

    Args:
        mode: its permissions, less those that the umask takes away.

    Raises:
        OSError: it cannot be written.
    """
    sweep(path.parent.glob(f"{path.name}.*-????????.part"))
    part = temporary(path)
    try:
        os.close(os.open(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY, mode))
        part.write_bytes(text.encode("utf-8", "replace"))
        part.replace(path)
    finally:
        with suppress(OSError):
            part.unlink(missing_ok=True)


def sweep(candidates: Iterable[Path], age: float = _FORGOTTEN) -> None:
    """Delete those of `candidates`, temporary files and folders, that are abandoned.

    That is, nothing in them has changed for `age` seconds, and the process that made them, if the name has its id, does
    not run. Errors of deleting are ignored.
    """
    for path in candidates:
        with suppress(OSError):
            if not path.is_symlink() and _abandoned(path, age):
                shutil.rmtree(path) if path.is_dir() else path.unlink()


def _abandoned(path: Path, age: float) -> bool:
    states = [each.lstat() for each in (path, *path.rglob("*"))]
    if max(max(state.st_mtime, state.st_ctime) for state in states) > time.time() - age:
        return False
    found = _NAME.fullmatch(path.name)
    return found is None or not _lives(int(found["process"], 16))


def _lives(process: int) -> bool:
    import psutil  # noqa: PLC0415 - seldom needed

    return bool(psutil.pid_exists(process))
