"""Bytes that a folder takes."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path


def size_of_folder(folder: Path) -> int:
    """Bytes of the files in a folder, links not followed; what cannot be read counts 0."""
    size = 0
    for root, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):
                state = os.lstat(os.path.join(root, name))  # noqa: PTH118 - tens of thousands of files
                size += 0 if os.path.islink(os.path.join(root, name)) else state.st_size  # noqa: PTH114, PTH118
    return size
