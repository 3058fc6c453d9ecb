"""Small files that may be there or not."""

from __future__ import annotations

import errno
import stat
from pathlib import Path


def is_text(value: object) -> bool:
    """Whether this is a text that UTF-8 can write: JSON may spell half a character (a lone surrogate), which it
    cannot."""
    try:
        return isinstance(value, str) and value.encode() is not None
    except UnicodeEncodeError:
        return False


def contents(path: Path) -> bytes | None:
    """What is in a file; None where there is nothing of this name.

    Raises:
        OSError: it cannot be read, is a link to nothing, or is no regular file: reading a pipe or a device may never
            end.
    """
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        if path.is_symlink():
            raise OSError(errno.ENOENT, "it is a link to nothing", str(path)) from None
        return None
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    return path.read_bytes()


def text(path: Path, errors: str = "strict") -> str | None:
    """What is in a file of UTF-8, with every end of a line as "\\n"; None where there is nothing of this name.

    `errors` is what becomes of bytes that are no UTF-8, as `bytes.decode` takes it.

    Raises:
        OSError: as `contents` does.
        UnicodeDecodeError: it is no UTF-8.
    """
    data = contents(path)
    return None if data is None else data.decode("utf-8", errors).replace("\r\n", "\n").replace("\r", "\n")
