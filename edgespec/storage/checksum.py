"""Checksums of files of weights: of all bytes, to detect damage, and of a sample, to distinguish models.

digest      SHA-256 over the SHA-256 of each block of 16 MiB, so that several threads can share the work
sampled     SHA-256 over the size of the file and 256 pages of 4 KiB at equal distances: 1 MiB is read. It differs
            for two files of equal size that differ in 3% of their bytes or more, in one range or in many
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from ..errors import Interrupted

_BLOCK = 1 << 24
_PAGES, _PAGE = 256, 4096


def digest(path: Path, threads: int = 1, stopped: Callable[[], bool] = lambda: False) -> str:
    """The checksum of all bytes of a file.

    Raises:
        OSError: it cannot be read.
        Interrupted: `stopped` returned True.
    """

    def block(start: int) -> bytes:
        if stopped():
            raise Interrupted
        with path.open("rb") as file:
            file.seek(start)
            return hashlib.sha256(file.read(_BLOCK)).digest()

    whole = hashlib.sha256()
    with ThreadPoolExecutor(threads) as pool:
        for part in pool.map(block, range(0, path.stat().st_size, _BLOCK)):
            whole.update(part)
    return whole.hexdigest()


def sampled(path: Path) -> str:
    """The checksum of a sample of a file, with its beginning and its end.

    Raises:
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        size = path.stat().st_size
        found = hashlib.sha256(str(size).encode())
        last = max(0, size - _PAGE)
        for page in range(_PAGES):
            file.seek(last * page // (_PAGES - 1))
            found.update(file.read(_PAGE))
    return found.hexdigest()
