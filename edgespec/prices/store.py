"""Prices on disk, one file for each model, device, thread count and engine version. Delete any of them at any time."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from platformdirs import user_cache_path

from ..backends import Session
from .measuring import WIDTHS
from .prices import Prices
from .table import Row

_VERSION = 2


def recall(session: Session) -> Prices | None:
    """The prices kept for this file, device, thread count and engine version, or None.

    None, too, where fewer widths were measured than this session takes: it was a smaller one then.
    """
    rows = {context: row[: session.widest] for context, row in _read(session).items()}
    wanted = max(1, min(WIDTHS, session.widest, session.context - 1))
    if not any(len(row) >= wanted and None not in row for row in rows.values()):
        return None
    return Prices.of({context: row for context, row in rows.items() if set(row) != {None}})


def keep(session: Session, prices: Prices) -> None:
    """Keep what `prices` know of the machine without company, for the next run.

    What another process kept meanwhile of cache lengths and widths that these do not know stays. A cache that cannot
    be written costs a measurement, never an error.
    """
    rows: dict[int, Row] = dict(_read(session))
    for context, row in prices.rows().items():
        before = rows.get(context, ())
        known = (before[i] if s is None and i < len(before) else s for i, s in enumerate(row))
        rows[context] = (*known, *before[len(row) :])
    _write(_path(session), {"version": _VERSION, "identity": session.identity, "rows": rows})


def cache_folder() -> Path:
    """Where edgespec keeps what it can measure again; the environment variable EDGESPEC_CACHE moves it."""
    moved = os.environ.get("EDGESPEC_CACHE")
    return Path(moved) if moved else user_cache_path("edgespec", appauthor=False)


def _path(session: Session) -> Path:
    name = hashlib.sha256(session.identity.encode()).hexdigest()[:32]
    return cache_folder() / "prices" / f"{name}.json"


def _read(session: Session) -> Mapping[int, Row]:
    """The rows kept; none where the file is missing, broken, of another version or not ours."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        kept = json.loads(_path(session).read_text("utf-8"))
        rows: dict[int, Row] = {int(context): [*map(_seconds, row)] for context, row in kept["rows"].items()}
        ours = kept["version"] == _VERSION and kept["identity"] == session.identity
        if ours and all(rows.values()) and min(rows) > 0:
            return rows
    return {}


def _seconds(kept: object) -> float | None:
    """One price; None where it is a hole. ValueError where it is no price."""
    if kept is None:
        return None
    if not isinstance(kept, float | int) or not 0 < kept < math.inf:
        raise ValueError(kept)
    return float(kept)


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
