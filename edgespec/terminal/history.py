"""The input history of chats: a file of bounded size that only its owner can read."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from stat import S_IMODE, S_ISREG
from typing import TYPE_CHECKING

from ..errors import EdgespecError
from ..storage.cache import cache_folder
from ..storage.leftovers import sweep, temporary

if TYPE_CHECKING:
    from prompt_toolkit.history import History

_NAME = "chat_history"
_LARGEST = 1 << 18  # bytes; a longer file is cut to its newest half
_ENTRY = b"\n# "  # the beginning of an entry; each line of its text begins with "+"


def place() -> Path:
    """The path of the file: in the folder of EDGESPEC_CACHE, else in the system's folder for programs' state."""
    return cache_folder() / _NAME if os.environ.get("EDGESPEC_CACHE") else _usual()


def prepared() -> Path | None:
    """Create the file with access for its owner only; None if it cannot be created or is not a regular file."""
    path = place()
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        sweep(path.parent.glob(f"{_NAME}.*-????????.part"))
        with suppress(FileExistsError):
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        state = path.stat()
        if S_ISREG(state.st_mode):  # not a link to /dev/null, whose mode must not be changed
            if S_IMODE(state.st_mode) & 0o077 and os.name != "nt":
                path.chmod(0o600)  # written by an earlier version
            shorten(path)
            return path
    return None


def opened(path: Path | None) -> History:
    """The history in the file that `prepared` returned; in memory where that is None."""
    from prompt_toolkit.history import FileHistory, InMemoryHistory  # noqa: PLC0415 - it takes a tenth of a second

    class _Bounded(FileHistory):
        def store_string(self, string: str) -> None:
            with suppress(OSError, ValueError):  # a full disk or a lone surrogate must not end the chat
                super().store_string(string)
                shorten(Path(os.fsdecode(self.filename)))

    return _Bounded(str(path)) if path is not None else InMemoryHistory()


def shorten(path: Path) -> None:
    """Drop the oldest entries of a file that is too long. Raises OSError."""
    if path.stat().st_size <= _LARGEST:
        return
    with path.open("rb") as file:
        file.seek(-_LARGEST // 2, os.SEEK_END)
        kept = file.read()
    begins = kept.find(_ENTRY)
    part = temporary(path)
    try:
        with os.fdopen(os.open(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb") as file:
            file.write(kept[begins:] if begins >= 0 else b"")
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def forget() -> int:
    """Delete the file, and the one at the default path. Returns how many there were.

    Raises:
        EdgespecError: a file cannot be deleted.
    """
    found = 0
    for path in {place(), _usual()}:
        try:
            for each in (path, *path.parent.glob(f"{_NAME}.*-????????.part")):
                if each.is_file() and not each.is_symlink():
                    each.unlink()
                    found += each == path
        except OSError as error:
            raise EdgespecError(f"{error.filename} cannot be deleted: {error.strerror}; delete it yourself") from error
    return found


def _usual() -> Path:
    from platformdirs import user_state_path  # noqa: PLC0415

    return user_state_path("edgespec", appauthor=False) / _NAME
