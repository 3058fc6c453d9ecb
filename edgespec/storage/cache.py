"""Data that is kept between runs: a JSON file per kind and identity, which may be deleted at any time.

Files are written under a temporary name and renamed, so several processes may write, and no reader sees an incomplete
file. A file that is missing, damaged, of another version or of another identity counts as empty; errors of writing are
ignored.
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
    """The folder of all files: the user's cache folder, or that of the environment variable EDGESPEC_CACHE."""
    moved = os.environ.get("EDGESPEC_CACHE")
    return Path(moved) if moved else user_cache_path("edgespec", appauthor=False)


@dataclass(frozen=True, slots=True)
class Shelf:
    """The file of one kind and identity.

    Args:
        kind: the name of the folder.
        identity: what the data belongs to.
        version: of the format.
    """

    kind: str
    identity: str
    version: int

    @property
    def path(self) -> Path:
        """The path of the file."""
        name = hashlib.sha256(self.identity.encode("utf-8", "surrogatepass")).hexdigest()[:32]
        return cache_folder() / self.kind / f"{name}.json"

    def read(self) -> dict[str, Any]:
        """The data; empty if there is none that is valid."""
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            kept: dict[str, Any] = json.loads(regular(self.path).read_bytes())
            if kept.pop("version") == self.version and kept.pop("identity") == self.identity:
                return kept
        return {}

    def write(self, kept: Mapping[str, Any]) -> None:
        """Replace the data by `kept`. Only the owner can read the file."""
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
        """Delete the file, and temporary files of killed processes.

        Raises:
            EdgespecError: it cannot be deleted.
        """
        _delete([self.path, *self.path.parent.glob(f"{self.path.stem}*.part")])


def forget_kind(kind: str) -> int:
    """Delete all files of a kind; returns their number.

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
        return  # there are no files
    except OSError as error:
        raise EdgespecError(f"{error.filename} cannot be deleted: {error.strerror}; delete it yourself") from error
