"""Prices on disk, one file for each model, device, thread count and engine version. Delete any of them at any time."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from platformdirs import user_cache_path

from ..backends import Session
from .measuring import WIDTHS
from .prices import Prices

_VERSION = 2

Rows = Mapping[int, Sequence[float]]


def recall(session: Session) -> Prices | None:
    """The prices kept for this file, device, thread count and engine version, or None.

    None, too, where fewer widths were measured than this session takes: it was a smaller one then.
    """
    rows = _read(session)
    wanted = min(WIDTHS, session.widest, session.context - 1)
    if not rows or max(map(len, rows.values())) < wanted:
        return None
    return Prices.measured({context: row[: session.widest] for context, row in rows.items()})


def keep(session: Session, prices: Prices) -> None:
    """Keep what `prices` know of the machine without company, for the next run.

    What another process kept meanwhile of cache lengths and widths that these do not know stays. A cache that cannot
    be written costs a measurement, never an error.
    """
    rows = {context: tuple(row) for context, row in _read(session).items()}
    for context, row in prices.rows().items():
        rows[context] = (*row, *rows.get(context, ())[len(row) :])
    _write(_path(session), {"version": _VERSION, "identity": session.identity, "rows": rows})


def cache_folder() -> Path:
    """Where edgespec keeps what it can measure again; the environment variable EDGESPEC_CACHE moves it."""
    moved = os.environ.get("EDGESPEC_CACHE")
    return Path(moved) if moved else user_cache_path("edgespec", appauthor=False)


def _path(session: Session) -> Path:
    name = hashlib.sha256(session.identity.encode()).hexdigest()[:32]
    return cache_folder() / "prices" / f"{name}.json"


def _read(session: Session) -> Rows:
    """The rows kept; none where the file is missing, broken, of another version or not ours."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        kept = json.loads(_path(session).read_text("utf-8"))
        rows = {int(context): [float(s) for s in row] for context, row in kept["rows"].items()}
        sound = all(row and all(0 < s < math.inf for s in row) and context > 0 for context, row in rows.items())
        if sound and kept["version"] == _VERSION and kept["identity"] == session.identity:
            return rows
    return {}


def _write(path: Path, kept: Mapping[str, Any]) -> None:
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        # A name of its own, then a rename: two processes may write, and a reader never sees half a file.
        descriptor, temporary = tempfile.mkstemp(dir=path.parent, suffix=".part")
        try:
            with os.fdopen(descriptor, "w") as file:
                json.dump(kept, file)
            Path(temporary).replace(path)
        except OSError:
            Path(temporary).unlink(missing_ok=True)
