"""What was typed in chats, kept so that the arrow keys find it again: by its owner alone, and not without bound."""

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
_LARGEST = 1 << 18  # bytes; of a longer file the newest half is kept
_ENTRY = b"\n# "  # what an entry begins with; each line of its text begins with "+"


def place() -> Path:
    """The file: in the folder that EDGESPEC_CACHE names, else where the system keeps the state of programs."""
    return cache_folder() / _NAME if os.environ.get("EDGESPEC_CACHE") else _usual()


def prepared() -> Path | None:
    """The file, there for its owner alone; None where nothing can be kept, or what has its name is no file."""
    path = place()
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        sweep(path.parent.glob(f"{_NAME}.*-????????.part"))
        with suppress(FileExistsError):
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        state = path.stat()
        if S_ISREG(state.st_mode):  # a link to /dev/null keeps nothing, and must not be changed
            if S_IMODE(state.st_mode) & 0o077 and os.name != "nt":
                path.chmod(0o600)  # one of an earlier version
            shorten(path)
            return path
    return None


def opened(path: Path | None) -> History:
    """The history in the file that `prepared` returned; of this session alone where that is None."""
    from prompt_toolkit.history import FileHistory, InMemoryHistory  # noqa: PLC0415 - it takes a tenth of a second

    class _Bounded(FileHistory):
        def store_string(self, string: str) -> None:
            with suppress(OSError, ValueError):  # a full disk, or half a character, must not end the chat
                super().store_string(string)
                shorten(Path(os.fsdecode(self.filename)))

    return _Bounded(str(path)) if path is not None else InMemoryHistory()


def shorten(path: Path) -> None:
    """Keep the newest entries of a file that has become too long. Raises OSError."""
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
    """Delete the file, and the one that was kept before EDGESPEC_CACHE was set; how many there were.

    Raises:
        EdgespecError: one cannot be deleted.
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
