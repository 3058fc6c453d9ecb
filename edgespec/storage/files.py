"""Reading of files that users name: pipes and devices, which may block for ever, are refused."""

from __future__ import annotations

import errno
from pathlib import Path


def is_text(value: object) -> bool:
    """Whether `value` is a string that UTF-8 can encode. Strings from JSON may have lone surrogates, which it
    cannot."""
    try:
        return isinstance(value, str) and value.encode() is not None
    except UnicodeEncodeError:
        return False


def regular(path: Path) -> Path:
    """`path`, if it can be read without blocking.

    Raises:
        OSError: it is a pipe, a socket or a device. No error for a folder or a missing file, which fail when opened.
    """
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise OSError(errno.EINVAL, "it is a pipe or a device, not a file", str(path))
    return path


def contents(path: Path) -> bytes | None:
    """The content of a file; None if it does not exist.

    Raises:
        OSError: it cannot be read, is a broken link, a folder, a pipe or a device.
    """
    try:
        return regular(path).read_bytes()
    except FileNotFoundError:
        if path.is_symlink():
            raise OSError(errno.ENOENT, "it is a link to nothing", str(path)) from None
        return None


def text(path: Path, errors: str = "strict") -> str | None:
    """The content of a UTF-8 file, with every line ending as "\\n"; None if it does not exist.

    Args:
        errors: handling of bytes that are not UTF-8, as in `bytes.decode`.

    Raises:
        OSError: as `contents`.
        UnicodeDecodeError: it is not UTF-8.
    """
    data = contents(path)
    return None if data is None else data.decode("utf-8", errors).replace("\r\n", "\n").replace("\r", "\n")
