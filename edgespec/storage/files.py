"""Files whose names are given: read only where reading them comes to an end."""

from __future__ import annotations

import errno
from pathlib import Path


def is_text(value: object) -> bool:
    """Whether this is a text that UTF-8 can write: JSON may spell half a character (a lone surrogate), which it
    cannot."""
    try:
        return isinstance(value, str) and value.encode() is not None
    except UnicodeEncodeError:
        return False


def regular(path: Path) -> Path:
    """`path`, for reading.

    Raises:
        OSError: it is a pipe, a socket or a device, which a reader might wait for without end. What is missing or a
            folder is left to the function that opens it.
    """
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise OSError(errno.EINVAL, "it is a pipe or a device, not a file", str(path))
    return path


def contents(path: Path) -> bytes | None:
    """What is in a file; None where there is nothing of this name.

    Raises:
        OSError: it cannot be read, is a link to nothing, a folder, a pipe or a device.
    """
    try:
        return regular(path).read_bytes()
    except FileNotFoundError:
        if path.is_symlink():
            raise OSError(errno.ENOENT, "it is a link to nothing", str(path)) from None
        return None


def text(path: Path, errors: str = "strict") -> str | None:
    """What is in a file of UTF-8, with every end of a line as "\\n"; None where there is nothing of this name.

    `errors` is what becomes of bytes that are no UTF-8, as `bytes.decode` takes it.

    Raises:
        OSError: as `contents` does.
        UnicodeDecodeError: it is no UTF-8.
    """
    data = contents(path)
    return None if data is None else data.decode("utf-8", errors).replace("\r\n", "\n").replace("\r", "\n")
