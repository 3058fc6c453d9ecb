"""Prices on disk, one file for each model, device, thread count and engine version. Delete any of them at any time."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence

from ..backends import OtherPrograms, Session
from ..storage.cache import Shelf
from .measuring import WIDTHS, calmed, measure, restless
from .prices import BASE, Prices
from .table import Row

_VERSION = 7  # prices of 6 fell from run to run, see `Prices.rows`
_FASTEST, _SLOWEST = 1e-9, 1e6  # seconds of a pass that a file may state
_LONGEST = 1 << 24  # tokens of a cache


def recall(session: Session) -> Prices | None:
    """The prices kept for this file, device, thread count and engine version, or None.

    None, too, where fewer widths were measured than this session takes: it was a smaller one then. What cannot be a
    machine's prices, for something stood still or ran beside it meanwhile, is as if it were not there.
    """
    rows = {context: row[: session.widest] for context, row in _read(session).items() if not restless(row)}
    wanted = max(1, min(WIDTHS, session.widest, session.context - 1))
    rows = {context: row for context, row in rows.items() if set(row) != {None}}
    base = rows.get(BASE, ())
    if len(base) < wanted or base[0] is None or base[-1] is None:
        return None
    prices = Prices.of(rows)
    prices.trusted = _trusted(session)
    prices.switching = _switching(session)
    return prices


def keep(session: Session, prices: Prices) -> None:
    """Keep what `prices` know of the machine without company, for the next run.

    What another process kept meanwhile of cache lengths and widths that these do not know stays. What cannot be a
    machine's prices is not kept. What was measured beside busy programs gives way to what was not. A cache that cannot
    be written costs a measurement, never an error.
    """
    before_these = _read(session)
    if before_these and _trusted(session) and not prices.trusted:
        return
    rows: dict[int, Row] = dict(before_these) if _trusted(session) else {}
    for context, row in prices.rows().items():
        if restless(row):
            continue
        before = rows.get(context, ())
        known = (before[i] if s is None and i < len(before) else s for i, s in enumerate(row))
        rows[context] = (*known, *before[len(row) :])
    if rows:
        _shelf(session).write({"rows": rows, "trusted": prices.trusted, "switching": prices.switching})


def measure_and_keep(
    session: Session, text: Sequence[int] = (), on_share: Callable[[float], None] = lambda _share: None
) -> Prices:
    """Measure passes over `text` and keep their prices for later runs. Prices measured on a busy machine are corrected,
    and kept only until they are measured on a quiet one.

    The session must be empty, and is so afterwards.
    """
    with OtherPrograms() as others:
        curve = measure(session, on_share, text=text)
    trusted = not (others.busy or restless(curve))
    prices = Prices(curve.timed if trusted else calmed(curve))
    prices.trusted, prices.switching = trusted, curve.switching
    keep(session, prices)
    return prices


def _shelf(session: Session) -> Shelf:
    return Shelf("prices", session.identity, _VERSION)


def _trusted(session: Session) -> bool:
    """Whether what is kept was measured on a quiet machine."""
    return bool(_shelf(session).read().get("trusted", True))


def _switching(session: Session) -> float:
    """What is kept of `Prices.switching`; 0 where it makes no sense."""
    with contextlib.suppress(ValueError):
        return _seconds(_shelf(session).read().get("switching")) or 0.0
    return 0.0


def _read(session: Session) -> Mapping[int, Row]:
    """The rows kept; none where they make no sense."""
    with contextlib.suppress(ValueError, TypeError, AttributeError):
        kept = _shelf(session).read().get("rows", {})
        rows: dict[int, Row] = {int(context): [*map(_seconds, row)] for context, row in kept.items()}
        if all(rows.values()) and all(0 < context <= _LONGEST for context in rows):
            return rows
    return {}


def _seconds(kept: object) -> float | None:
    """One price; None where it is a hole. ValueError where it is no price."""
    if kept is None:
        return None
    if not isinstance(kept, float | int) or isinstance(kept, bool) or not _FASTEST <= kept <= _SLOWEST:
        raise ValueError("no price")
    return float(kept)
