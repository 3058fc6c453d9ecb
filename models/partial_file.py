"""A file of a hub while it comes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from .listing import Remote

_CHUNK = 1 << 22


class Growing:
    """A file that is appended to, counted and hashed while it is written, as far as `http_get` needs a file.

    `discard` says that what was written is of no use to a later run.
    """

    def __init__(self, path: Path, file: Remote, tell: Callable[[int], None]) -> None:
        self._file = path.open("a+b")
        self._remote, self._tell = file, tell
        self._restart()
        self.discard = False
        self._file.seek(0)
        while chunk := self._file.read(_CHUNK):
            self._count(chunk)

    @classmethod
    @contextmanager
    def open(cls, path: Path, file: Remote, tell: Callable[[int], None]) -> Iterator[Growing]:
        if path.is_file() and path.stat().st_size > file.size:
            path.unlink()
        growing = cls(path, file, tell)
        try:
            yield growing
        finally:
            growing._file.close()
            if growing.discard or not growing.size:
                path.unlink(missing_ok=True)

    @property
    def digest(self) -> str:
        return str(self._hash.hexdigest())

    def write(self, data: bytes) -> int:
        written = self._file.write(data)
        self._count(data)
        return written

    def tell(self) -> int:
        return self._file.tell()

    def seek(self, offset: int) -> int:
        return self._file.seek(offset)

    def truncate(self) -> int:
        """What was here is not gone on with: the hub sends all of it again."""
        self._restart()
        return self._file.truncate(0)

    def _restart(self) -> None:
        self.size, self._hash = 0, self._remote.hasher()

    def _count(self, data: bytes) -> None:
        self._hash.update(data)
        self.size += len(data)
        self._tell(self.size)


class Coming:
    """Bytes that come in pieces, read like a file."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces
        self._held = b""
        self._at = 0

    def read(self, n: int) -> bytes:
        while len(self._held) - self._at < n and (piece := next(self._pieces, None)) is not None:
            self._held, self._at = self._held[self._at :] + piece, 0
        self._at += n
        return self._held[self._at - n : self._at]


class Silent:
    """The bar that huggingface-hub would draw."""

    def __init__(self, *_args: object, **_options: object) -> None:
        pass

    def __enter__(self) -> Silent:
        return self

    def __exit__(self, *_error: object) -> None:
        pass

    def update(self, n: float | None = 1) -> None:
        pass

    def close(self) -> None:
        pass
