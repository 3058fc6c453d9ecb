"""What may come of an input: success, or an error of edgespec's own with a message fit for a terminal."""

from __future__ import annotations

import os
import unicodedata
from collections.abc import Iterable, Mapping
from pathlib import Path

#: Seconds that an input may take: of a processor, so that company on the machine does not count, and in all.
PATIENCE, PATIENCE_IN_ALL = 30.0, 90.0
MEMORY = 1_000_000_000  #: bytes that a process may hold, the models of the campaign being too small to count
LONGEST_MESSAGE = 20_000  #: characters: options and paths that a user typed are repeated, perhaps twice
_UNPRINTABLE = {"Cc", "Cs", "Zl", "Zp"}  # control characters, lone surrogates, separators of lines and paragraphs
_TEMPORARY = (".part", ".old", ".tmp")


class Wrong(Exception):
    """What must not come of an input. `what` names the sort of failure in one word."""

    def __init__(self, what: str, detail: str) -> None:
        super().__init__(detail)
        self.what = what
        self.detail = detail


def check_message(message: str) -> None:
    """Wrong unless `message` is one line that a terminal can show."""
    if not message.strip():
        raise Wrong("message", "an error without a message")
    if len(message) > LONGEST_MESSAGE:
        raise Wrong("message", f"a message of {len(message)} characters: {message[:200]!r}")
    if bad := next((each for each in message if unicodedata.category(each) in _UNPRINTABLE), None):
        raise Wrong("message", f"{bad!r} in the message {message[:500]!r}")


def check_terminal(text: str) -> None:
    """Wrong if what a command wrote would command the terminal, or shows a traceback."""
    if "Traceback (most recent call last)" in text:
        raise Wrong("traceback", text[-1500:])
    allowed = {"\n", "\t"}
    if bad := next((c for c in text if unicodedata.category(c) in {"Cc", "Cs"} and c not in allowed), None):
        raise Wrong("message", f"{bad!r} in what was written: {text[:500]!r}")


def is_own(file: str) -> bool:
    """Whether a frame of a traceback is the campaign's own."""
    return Path(file).is_relative_to(Path(__file__).parent)


def held(folder: Path) -> set[str]:
    """The files and folders below `folder`."""
    found = set()
    for where, folders, files in os.walk(folder):
        found |= {os.path.relpath(Path(where) / name, folder) for name in (*folders, *files)}
    return found


def check_leftovers(places: Mapping[str, Path], before: Mapping[str, set[str]], open_to: Iterable[str]) -> None:
    """Wrong if an input left something where nothing is to be left, or something temporary anywhere.

    `open_to` names the places that may keep what is no temporary file.
    """
    free = set(open_to)
    for name, folder in places.items():
        new = sorted(held(folder) - before[name])
        if left := [each for each in new if name not in free or _is_temporary(each)]:
            raise Wrong("leftover", f"{len(left)} in the {name} folder: {', '.join(left[:5])}")


def _is_temporary(path: str) -> bool:
    return any(part.endswith(_TEMPORARY) for part in Path(path).parts)
