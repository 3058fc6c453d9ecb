"""What edgespec keeps between runs: one JSON file for each kind and identity, safe to delete at any time.

Files are written whole under another name and then renamed, so two processes may write and no reader sees half a
file. What is missing, broken, of another version or not ours is as if it were not there; what cannot be written is
left.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from platformdirs import user_cache_path

from ..errors import EdgespecError
from .files import regular
from .leftovers import sweep, temporary


def cache_folder() -> Path:
    """Where all of it lies; the environment variable EDGESPEC_CACHE moves it."""
    moved = os.environ.get("EDGESPEC_CACHE")
    return Path(moved) if moved else user_cache_path("edgespec", appauthor=False)


@dataclass(frozen=True, slots=True)
class Shelf:
    """The place of one thing: its `kind`, which names a folder, what it belongs to, and the version of its form."""

    kind: str
    identity: str
    version: int

    @property
    def path(self) -> Path:
        """The file."""
        name = hashlib.sha256(self.identity.encode("utf-8", "surrogatepass")).hexdigest()[:32]
        return cache_folder() / self.kind / f"{name}.json"

    def read(self) -> dict[str, Any]:
        """What was kept; nothing where that is not to be had."""
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            kept: dict[str, Any] = json.loads(regular(self.path).read_bytes())
            if kept.pop("version") == self.version and kept.pop("identity") == self.identity:
                return kept
        return {}

    def write(self, kept: Mapping[str, Any]) -> None:
        """Keep this in place of what was kept, readable by its owner alone."""
        text = json.dumps({"version": self.version, "identity": self.identity, **kept}, separators=(",", ":"))
        with contextlib.suppress(OSError):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            sweep(self.path.parent.glob("*.part"))
            part = temporary(self.path)
            try:
                descriptor = os.open(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
                with os.fdopen(descriptor, "w") as file:
                    file.write(text)
                part.replace(self.path)
            finally:
                part.unlink(missing_ok=True)

    def forget(self) -> None:
        """Delete what was kept, and what a killed process left of it.

        Raises:
            EdgespecError: it cannot be deleted.
        """
        _delete([self.path, *self.path.parent.glob(f"{self.path.stem}*.part")])


def forget_kind(kind: str) -> int:
    """Delete all that was kept of a kind; how many files that were.

    Raises:
        EdgespecError: one cannot be deleted.
    """
    paths = [*(cache_folder() / kind).glob("*.json"), *(cache_folder() / kind).glob("*.part")]
    _delete(paths)
    return sum(path.suffix == ".json" for path in paths)


def _delete(paths: Iterable[Path]) -> None:
    try:
        for path in paths:
            path.unlink(missing_ok=True)
    except NotADirectoryError:
        return  # nothing can have been kept
    except OSError as error:
        raise EdgespecError(f"{error.filename} cannot be deleted: {error.strerror}; delete it yourself") from error
