"""Passes timed before there are rounds to learn from."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate, cycle, islice

from ..backends import Session
from .prices import BASE, Prices
from .table import Row, bridged

WIDTHS = 16  #: widths measured at load are 1 to this many tokens; the longest adaptive draft is one less
_SWEEPS = 24
_LEAST = 3  # sweeps, the first of them to warm up
_CHEAPEST = 0.8  # of a plain step, what a wider pass takes at least
_VITAL = (1, 2, 3, 4, 8, 16, 32)  # measured whatever it takes: kernels have their steps there

Clock = Callable[[], float]
Tell = Callable[[float], None]


class Curve(list[float]):
    """Seconds for 1, 2, ... tokens. `between` are the widths not timed, which lie between their neighbours; `switching`
    as in `Prices`."""

    def __init__(self, seconds: Iterable[float], between: Iterable[int] = (), switching: float = 0.0) -> None:
        super().__init__(seconds)
        self.between = frozenset(between)
        self.switching = switching

    @property
    def timed(self) -> Row:
        """The same, None for what was not timed."""
        return [None if n in self.between else seconds for n, seconds in enumerate(self, 1)]


def measure(
    session: Session,
    on_share: Tell = lambda _share: None,
    *,
    text: Sequence[int] = (),
    widest: int = WIDTHS,
    budget: float = 1.0,
    clock: Clock = time.perf_counter,
) -> Curve:
    """Measure passes of 1 to `widest` tokens of `text` after `BASE` others: seconds by width, as `measure_here` does.

    The session must be empty, and is so afterwards.
    """
    widest = max(1, min(widest, session.widest, session.context - 1))
    try:
        before = max(0, min(BASE, session.context - widest))
        session.prefill(filler(session, before, text))
        following = (*text[before:], *text[:before])
        return measure_here(session, on_share, text=following, widest=widest, budget=budget, clock=clock)
    finally:
        session.rollback(0)


def measure_here(
    session: Session,
    on_share: Tell = lambda _share: None,
    *,
    text: Sequence[int] = (),
    widest: int = WIDTHS,
    budget: float = 1.0,
    clock: Clock = time.perf_counter,
) -> Curve:
    """Measure passes of 1 to `widest` tokens of `text` after what the session holds: the median seconds by width.

    Each is timed after as many others of its width as it takes for their price to settle (`Session.settling`).
    The widths where kernels have their steps are timed at least twice; a first pass, in which engines build graphs,
    is not counted. The others are, too, as far as `budget` seconds suffice; what is left out lies on a straight
    line between its neighbours. Sweeps go up and down by turns, and on while there is time. The session holds what it
    held before. `on_share` is told the share done, from 0 to 1.

    Args:
        text: tokens of ordinary text (`sample_text`), of which each pass takes the next ones: what a pass of a mixture
            of experts costs depends on them. Without it they are 1, 2, 3, ...
    """
    widest = max(1, min(widest, session.widest, session.context - len(session.tokens)))
    return _Measurement(session, clock, on_share, widest, _Stretches(session, text)).run(budget)


def filler(session: Session, n: int, text: Sequence[int] = ()) -> list[int]:
    """`n` tokens of `text` to fill a cache with."""
    return _Stretches(session, text).following(n)


def refresh(
    session: Session,
    prices: Prices,
    clock: Clock = time.perf_counter,
    *,
    text: Sequence[int] = (),
    slowdown: float = math.inf,
) -> None:
    """Scale recalled `prices` to what a plain step takes now: a laptop on battery, or with company, is another machine.

    Takes three plain steps or more, which also bring the weights into memory; those until the price has settled are not
    counted. The session must be empty, and is so afterwards.

    Args:
        text: as for `measure_here`.
        slowdown: how many times as long as recalled a plain step may take at most; more was a disturbance.
    """
    times, stretches = [], _Stretches(session, text)
    if session.settling:
        _warm(session, prices.widest, stretches)
    unsettled = max(1, session.settling)
    for _ in range(unsettled + 2):
        tokens = stretches.following(1)
        before = clock()
        session.decode(tokens)
        times.append(clock() - before)
    session.rollback(0)
    prices.rescale(min(slowdown, min(times[unsettled:]) / prices.plain(0)))


def _warm(session: Session, widest: int, stretches: _Stretches) -> None:
    """Make a pass of each width, and read a prompt. Engines that record passes also take memory for each kind at its
    first pass: on an H200 the first draft of 5 tokens took 11 ms where later ones took 6."""
    session.prefill(stretches.following(max(0, min(BASE, session.context - widest))))
    held = len(session.tokens)
    for n in range(1, min(widest, session.widest, session.context - held) + 1):
        if session.owed:
            session.prefill(())
        session.decode(stretches.following(n))
        session.rollback(held)
    session.rollback(0)


class _Stretches:
    """The tokens of a text, from stretch to stretch, and from its beginning again after its end; without a text 1, 2,
    3, ..."""

    def __init__(self, session: Session, text: Sequence[int]) -> None:
        known = [token for token in text if 0 <= token < session.vocab]
        self._tokens = cycle(known or range(1, max(2, session.vocab - 1)))

    def following(self, n: int) -> list[int]:
        """The next `n` tokens."""
        return list(islice(self._tokens, n))


class _Measurement:
    """One curve in the making."""

    def __init__(self, session: Session, clock: Clock, on_share: Tell, widest: int, stretches: _Stretches) -> None:
        self._session = session
        self._clock = clock
        self._tell = on_share
        self._base = len(session.tokens)
        self._stretches = stretches
        self._widest = widest
        self._times: dict[int, list[float]] = {n: [] for n in range(1, widest + 1)}
        self._switching: list[float] = []
        self._done = 0
        self._up = False

    def run(self, budget: float) -> Curve:
        started = self._clock()
        vital = sorted({n for n in (*_VITAL, self._widest) if n <= self._widest})
        self._sweeps(vital, _LEAST, self._widest)
        others = self._affordable(budget - (self._clock() - started))
        chosen = sorted([*vital, *others])
        self._sweeps(others, _LEAST, len(chosen))
        curve = self._curve()
        sweep = (1 + self._session.settling) * sum(curve[n - 1] for n in chosen)
        while self._clock() - started + sweep <= budget and len(self._times[1]) < _SWEEPS:
            self._sweeps(chosen, 1, len(chosen))
        self._tell(1.0)
        return self._curve()

    def _sweeps(self, widths: Sequence[int], sweeps: int, of: int) -> None:
        """Time every width, up and down by turns; a slow drift then makes none of them dearer than another."""
        for _ in range(sweeps):
            self._up = not self._up
            for n in widths if self._up else reversed(widths):
                before = [self._pass(n) for _ in range(self._session.settling)]
                took = self._pass(n)
                if before and self._times[n]:  # the first sweep warms up
                    self._switching.append(before[0] - took)
                self._times[n].append(took)
                self._done += 1
                self._tell(min(1.0, self._done / (_LEAST * of)))

    def _pass(self, n: int) -> float:
        """The seconds of a pass, which is rolled back. Tokens that are owed are computed before it."""
        if self._session.owed:
            self._session.prefill(())
        tokens = self._stretches.following(n)
        before = self._clock()
        self._session.decode(tokens)
        seconds = self._clock() - before
        self._session.rollback(self._base)
        return seconds

    def _affordable(self, seconds: float) -> list[int]:
        """The widths yet unmeasured that there is time for, those after a likely step first."""
        curve = self._curve()
        chosen = []
        left = [n for n, times in self._times.items() if not times]
        for n in sorted(left, key=lambda n: ((n - 1) % 4 > 0, n % 2, n)):
            seconds -= _LEAST * (1 + self._session.settling) * curve[n - 1]
            if seconds > 0:
                chosen.append(n)
        return sorted(chosen)

    def _curve(self) -> Curve:
        # Of two the lower: nothing makes a pass faster than it is.
        known = {n: statistics.median_low(times[1:]) for n, times in self._times.items() if len(times) > 1}
        timed = [known.get(n) for n in range(1, self._widest + 1)]
        between = (n for n, seconds in enumerate(timed, 1) if seconds is None)
        return Curve(bridged(timed), between, max(0.0, statistics.median_low(self._switching or [0.0])))


def restless(curve: Row) -> bool:
    """Whether something else ran while this was measured: a wider pass that takes half of a narrower one is none, nor
    is one that takes half as much again as so many plain steps, or 0.8 of one. None where a width was not measured.

    Of the curves measured on quiet machines (benchmarks/simulator) no width takes less than 0.96 of a narrower one.
    """
    widest, plain = 0.0, curve[0]
    for n, seconds in enumerate(curve, 1):
        if seconds is None:
            continue
        if seconds < 0.5 * widest or (plain is not None and not _CHEAPEST * plain <= seconds <= 1.5 * n * plain):
            return True
        widest = max(widest, seconds)
    return False


def calmed(curve: Sequence[float]) -> list[float]:
    """A curve that was measured beside other programs as it may be on a quiet machine: no pass costs more than a wider
    one, nor more than as many plain ones."""
    cheapest = list(accumulate(reversed(curve), min))[::-1]
    return [min(seconds, n * cheapest[0]) for n, seconds in enumerate(cheapest, 1)]
