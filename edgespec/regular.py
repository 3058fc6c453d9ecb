"""Files whose name somebody gave, opened only where reading them comes to an end."""

from __future__ import annotations

import errno
from pathlib import Path


def regular(path: Path) -> Path:
    """`path`, for reading.

    Raises:
        OSError: it is a pipe, a socket or a device, for which a reader might wait for ever. What is missing or a
            folder is left to whoever opens it.
    """
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise OSError(errno.EINVAL, "it is a pipe or a device, not a file", str(path))
    return path
