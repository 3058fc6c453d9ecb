"""A file of a hub during its download."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from .listing import RemoteFile

_CHUNK = 1 << 22


class PartialFile:
    """A file that is hashed and counted while it is written, with the methods of a file that `http_get` calls.

    Set `discard` to delete the file on leaving `open`: a later run could not resume from it.
    """

    def __init__(self, path: Path, file: RemoteFile, tell: Callable[[int], None]) -> None:
        self._file = path.open("a+b")
        self._remote, self._tell = file, tell
        self._restart()
        self.discard = False
        self._file.seek(0)
        while chunk := self._file.read(_CHUNK):
            self._count(chunk)

    @classmethod
    @contextmanager
    def open(cls, path: Path, file: RemoteFile, tell: Callable[[int], None]) -> Iterator[PartialFile]:
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
        """Start over: the hub sends the whole file again."""
        self._restart()
        return self._file.truncate(0)

    def _restart(self) -> None:
        self.size, self._hash = 0, self._remote.hasher()

    def _count(self, data: bytes) -> None:
        self._hash.update(data)
        self.size += len(data)
        self._tell(self.size)


class ChunkReader:
    """An iterator of byte strings, read like a file."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces
        self._held = b""
        self._at = 0

    def read(self, n: int) -> bytes:
        while len(self._held) - self._at < n and (piece := next(self._pieces, None)) is not None:
            self._held, self._at = self._held[self._at :] + piece, 0
        self._at += n
        return self._held[self._at - n : self._at]


class NoProgressBar:
    """Takes the place of huggingface-hub's progress bar, and draws nothing."""

    def __init__(self, *_args: object, **_options: object) -> None:
        pass

    def __enter__(self) -> NoProgressBar:
        return self

    def __exit__(self, *_error: object) -> None:
        pass

    def update(self, n: float | None = 1) -> None:
        pass

    def close(self) -> None:
        pass
