"""What a pass over n tokens costs on this machine: measured at load, kept on disk, corrected by every round.

Prices are a staircase that depends on machine, quantization, threads and what else runs (llama.cpp's kernels take
rows in groups of 4 or 8), so nothing is assumed of their shape: every width is measured.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from platformdirs import user_cache_path

from .backends import Session

WIDTHS = 16  #: prices are measured for 1 to this many tokens; the longest draft is one less
_CONTEXT = 64  # tokens in the cache while measuring
_SWEEPS = 24
_VERSION = 1
_GAIN = 0.1  # share of a surprise that a price takes over from one pass
_CLIP = 1.5  # a pass counts as at most this many times dearer or cheaper: a hiccup of the machine is not the price
_TRUST = 8  # passes seen after which a width no longer moves with the others

Clock = Callable[[], float]


class Prices:
    """Seconds of a pass by width.

    Args:
        seconds: measured seconds for 1, 2, ... tokens; at least one. They need not rise.
    """

    def __init__(self, seconds: Sequence[float]) -> None:
        self._seconds = list(seconds)
        self._seen = [0] * len(seconds)

    def price(self, n: int) -> float:
        """Seconds that a pass over `n` >= 1 tokens takes; beyond the measured widths, by their mean slope."""
        widest = len(self._seconds)
        if n <= widest:
            return self._seconds[n - 1]
        slope = max(0.0, (self._seconds[-1] - self._seconds[0]) / max(1, widest - 1))
        return self._seconds[-1] + slope * (n - widest)

    @property
    def widest(self) -> int:
        return len(self._seconds)

    def curve(self, context: int) -> Sequence[float]:
        return self._seconds

    @property
    def plain(self) -> float:
        """Seconds of a plain step."""
        return self._seconds[0]

    @property
    def seconds(self) -> tuple[float, ...]:
        """The whole curve, widths 1, 2, ..."""
        return tuple(self._seconds)

    def scale(self, factor: float) -> None:
        """Everything is dearer by `factor`."""
        self._seconds = [seconds * factor for seconds in self._seconds]

    def observe(self, n: int, context: int, seconds: float) -> None:
        """Correct the curve by a pass over `n` tokens.

        The width seen moves; widths that no pass has shown yet move along, for a longer context or a slower clock
        makes all of them dearer. Widths known from passes of their own stay. So does the plain step: were it dearer
        because drafts are, no draft would ever look too dear; and where it is too cheap, plain steps soon tell.
        """
        if n > len(self._seconds):
            return
        surprise = min(max(seconds / self._seconds[n - 1], 1 / _CLIP), _CLIP)
        factor = surprise**_GAIN
        self._seen[n - 1] += 1
        for i, seen in enumerate(self._seen):
            if i == n - 1 or (i > 0 and seen < _TRUST):
                self._seconds[i] *= factor


def measure(
    session: Session,
    on_share: Callable[[float], None] = lambda _share: None,
    *,
    budget: float = 1.0,
    clock: Clock = time.perf_counter,
) -> list[float]:
    """Measure passes of 1 to `WIDTHS` tokens: the median seconds by width.

    Every width is timed at least twice; its first pass, in which engines build graphs, is not counted. Further
    sweeps follow until `budget` seconds are spent. The session must be empty, and is so afterwards. `on_share` is
    told the share done, from 0 to 1.
    """
    widths = range(1, max(1, min(WIDTHS, session.context - 1)) + 1)
    base = min(_CONTEXT, session.context - len(widths))
    tokens = [1 + i % max(1, session.vocab - 2) for i in range(max(_CONTEXT, WIDTHS))]
    times: list[list[float]] = [[] for _ in widths]
    started = clock()
    try:
        session.prefill(tokens[:base])
        while len(times[0]) < 3 or (clock() - started < budget and len(times[0]) < _SWEEPS):
            for n in widths:
                before = clock()
                session.decode(tokens[:n])
                times[n - 1].append(clock() - before)
                session.rollback(base)
                on_share(min(1.0, (len(times[0]) - 1 + n / len(widths)) / 3))
    finally:
        session.rollback(0)
    return [statistics.median(passes[1:]) for passes in times]


def refresh(session: Session, prices: Prices, clock: Clock = time.perf_counter) -> None:
    """Scale recalled `prices` to what a plain step takes now: a laptop on battery, or with company, is another machine.

    Takes three plain steps, which also bring the weights into memory. The session must be empty, and is so afterwards.
    """
    times = []
    for _ in range(3):
        before = clock()
        session.decode((0,))
        times.append(clock() - before)
    session.rollback(0)
    prices.scale(min(times[1:]) / prices.plain)


def recall(session: Session) -> Prices | None:
    """The prices kept for this file, device, thread count and engine version, or None."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        kept = json.loads(_path(session).read_text())
        seconds = [float(s) for s in kept["seconds"]]
        sound = bool(seconds) and all(0 < s < math.inf for s in seconds)
        if sound and kept["version"] == _VERSION and kept["identity"] == session.identity:
            return Prices(seconds)
    return None


def keep(session: Session, prices: Prices) -> None:
    """Keep `prices` for the next run. A cache that cannot be written costs a measurement, never an error."""
    path = _path(session)
    kept = {"version": _VERSION, "identity": session.identity, "seconds": prices.seconds}
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


def _path(session: Session) -> Path:
    name = hashlib.sha256(session.identity.encode()).hexdigest()[:32]
    return cache_folder() / "prices" / f"{name}.json"


def cache_folder() -> Path:
    """Where edgespec keeps what it can measure again; the environment variable EDGESPEC_CACHE moves it."""
    moved = os.environ.get("EDGESPEC_CACHE")
    return Path(moved) if moved else user_cache_path("edgespec", appauthor=False)
