"""Tuning: the best number of threads, and measurements of prices."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

from ..backends import (
    Device,
    Interrupt,
    Session,
    context_length,
    open_model,
    require_same_tokens,
    state_head_kind,
)
from ..backends.head_header import is_head_file
from ..backends.machine import OtherPrograms
from ..errors import OptionError
from ..prices import BASE, Clock, Curve, Prices, filler, keep, measure, measure_here, restless, sample_text
from ..prices.draft_length import TYPICAL, best

WIDEST = 32  #: the greatest width measured, in tokens
CONTEXTS = (1024, 4096, 16384, 65536)  #: cache lengths measured in addition to that of loading, up to the context

_COMPARING = 0.4  # share of the budget for comparing thread counts
_MEASURING = 0.5  # share of the time for a cache length, after filling the cache, that is spent on measuring
_CHUNK = 512
#: The least plausible price of a pass in plain passes, and the greatest in plain passes per token.
_CHEAPEST, _DEAREST = 0.7, 2.0

#: Called with the name of what is being measured, and the share of all work done, from 0 to 1.
OnProgress = Callable[[str, float], None]
#: Opens the sessions of a target and of its draft models with a number of threads.
Opener = Callable[[int], AbstractContextManager["OpenedPair"]]


def plausible(curve: Sequence[float]) -> bool:
    """Whether the prices are plausible: no pass costs less than a plain pass, nor much more than a plain pass per
    token, except for noise. Conclusions from other prices must not be shown."""
    plain = curve[0] if curve else 0.0
    if not 0 < plain < math.inf or restless(curve):
        return False
    return all(_CHEAPEST * plain <= seconds <= _DEAREST * n * plain for n, seconds in enumerate(curve, 1))


def thread_counts(cores: int) -> list[int]:
    """The thread counts to compare on this number of physical cores: one, and each quarter of all."""
    return sorted({1, *(math.ceil(cores * quarter / 4) for quarter in range(1, 5))})


def cache_lengths(context: int) -> list[int]:
    """The cache lengths to measure in a session of `context` tokens, with the full length."""
    full = context - WIDEST
    lengths = [length for length in CONTEXTS if length <= full]
    return [*lengths, full] if full >= 2 * max([BASE, *lengths]) else lengths


@dataclass(frozen=True, slots=True)
class Measured:
    """Measurements with one thread count.

    Args:
        threads: the number of threads.
        rows: seconds of a pass over 1, 2, ... tokens, by the number of tokens in the cache.
        steps: seconds per token of each draft model.
        between: the widths of each row that were interpolated, not measured (see `Curve`).
    """

    threads: int
    rows: Mapping[int, Sequence[float]]
    steps: tuple[float, ...] = ()
    between: Mapping[int, Collection[int]] = field(default_factory=dict)

    def with_row(self, context: int, row: Curve) -> Measured:
        """These measurements with those for `context` tokens in the cache."""
        rows, between = {**self.rows, context: tuple(row)}, {**self.between, context: row.between}
        return replace(self, rows=rows, between=between)

    @property
    def curve(self) -> Sequence[float]:
        """Seconds of a pass over 1, 2, ... tokens at the shortest cache length."""
        return self.rows[min(self.rows)]

    @property
    def step(self) -> float | None:
        """Seconds per token of the first draft model; None without one."""
        return next(iter(self.steps), None)

    @property
    def drafting(self) -> float:
        """Seconds per drafted token of the first draft model; 0 if there are only look-ups."""
        return self.step or 0.0

    @property
    def speed(self) -> float:
        """Tokens per second at the typical acceptance rate with the best draft length."""
        return best(self.curve, self.drafting, TYPICAL).speedup / self.curve[0]


class OpenedPair(NamedTuple):
    """Sessions of a target and of its draft models, and tokens of ordinary text to measure them with."""

    session: Session
    drafting: Sequence[Session] = ()
    text: Sequence[int] = ()


def fastest(measured: Sequence[Measured]) -> Measured:
    """The one with the fewest threads among those within 2% of the greatest speed."""
    top = max(each.speed for each in measured)
    return min((each for each in measured if each.speed >= 0.98 * top), key=lambda each: each.threads)


def opener(target: Path, drafts: Mapping[Path, Device], device: Device, interrupt: Interrupt) -> Opener:
    """An `Opener` for these files on `device`, each draft on its own."""

    @contextmanager
    def opened(threads: int) -> Iterator[OpenedPair]:
        requested = replace(device, threads=threads, exact=0)
        with ExitStack() as stack:
            model = stack.enter_context(closing(open_model(target, requested, interrupt)))
            context, text = context_length(requested, model), sample_text(model.vocabulary)
            session = stack.enter_context(closing(model.session(context)))
            drafting = []
            for path, where in drafts.items():
                if state_head_kind(path) or is_head_file(path):  # a head is measured when it is loaded
                    continue
                draft = stack.enter_context(closing(open_model(path, replace(where, threads=threads), interrupt)))
                require_same_tokens(model.vocabulary, draft.vocabulary)
                drafting.append(stack.enter_context(closing(draft.session(context))))
            yield OpenedPair(session, drafting, text)

    return opened


def tune(
    opened: Opener,
    threads: Sequence[int],
    *,
    budget: float = 60.0,
    on_progress: OnProgress = lambda _what, _share: None,
    clock: Clock = time.perf_counter,
) -> Iterator[Measured]:
    """Measure prices: briefly with every thread count, then with the best one at longer cache lengths.

    Yields the measurements of a thread count, and again when there are more. They are already stored for the next load,
    unless the machine was busy, so nothing is lost if the caller stops.

    Args:
        budget: the approximate time in seconds, without loading and the minimum of measurements.

    Raises:
        OptionError: `budget` is out of range.
        and as `open_model` and `require_same_tokens`.
    """
    if not 1 <= budget <= 86400:
        raise OptionError(f"budget is {budget}; it must be from 1 to 86400 seconds")
    return _tune(opened, threads, _Job(budget, clock, on_progress, (0.0, 1.0)))


class _Job:
    """A part of the work: its time, and the span of the progress that it covers."""

    def __init__(self, budget: float, clock: Clock, on_progress: OnProgress, span: tuple[float, float]) -> None:
        self.budget = budget
        self.clock = clock
        self._on_progress = on_progress
        self._first, self._last = span

    def part(self, first: float, last: float) -> _Job:
        """The part of this from the share `first` to the share `last`."""
        width = self._last - self._first
        span = (self._first + first * width, self._first + last * width)
        return _Job((last - first) * self.budget, self.clock, self._on_progress, span)

    def reporter(self, what: str) -> Callable[[float], None]:
        """A function that reports the share done of this part."""
        return lambda done: self._on_progress(what, self._first + done * (self._last - self._first))


def _tune(opened: Opener, threads: Sequence[int], job: _Job) -> Iterator[Measured]:
    known: list[Measured] = []
    each = _COMPARING / len(threads)
    for i, count in enumerate(threads):
        with opened(count) as pair:
            known.append(_measure_short(pair, count, job.part(i * each, (i + 1) * each)))
        yield known[-1]
    chosen = fastest(known)
    with opened(chosen.threads) as pair:
        yield from _measure_long(pair, chosen, job.part(_COMPARING, 1.0))


def _measure_short(pair: OpenedPair, threads: int, job: _Job) -> Measured:
    """The price curve at the cache length of loading, and the steps of the draft models."""
    session, drafting, text = pair
    what = f"measuring with {threads} thread{'s' * (threads > 1)}"
    first = job.part(0, 0.9 if drafting else 1)
    with OtherPrograms() as others:
        curve = measure(session, first.reporter(what), text=text, widest=WIDEST, budget=first.budget, clock=job.clock)
    _keep(session, Prices(curve.timed), others)
    steps = []
    for number, draft in enumerate(drafting):
        rest = job.part(0.9 + 0.1 * number / len(drafting), 0.9 + 0.1 * (number + 1) / len(drafting))
        with OtherPrograms() as others:
            found = measure(draft, rest.reporter(what), text=text, budget=rest.budget, clock=job.clock)
            stepping = Prices(found.timed)
        _keep(draft, stepping, others)
        steps.append(stepping.plain())
    return Measured(threads, {}, tuple(steps)).with_row(BASE, curve)


def _measure_long(pair: OpenedPair, known: Measured, job: _Job) -> Iterator[Measured]:
    """Price curves at longer cache lengths, from short to long, as far as the time suffices."""
    session, text, until = pair.session, pair.text, job.clock() + job.budget
    contexts = cache_lengths(session.context)
    for i, context in enumerate(contexts):
        report = job.part(i / len(contexts), (i + 1) / len(contexts)).reporter(
            f"measuring with {context} tokens before"
        )
        report(0.0)
        if not _fill(session, filler(session, context, text), job.clock, until):
            return
        budget = (until - job.clock()) / (len(contexts) - i)
        with OtherPrograms() as others:
            curve = measure_here(session, report, text=text, widest=WIDEST, budget=_MEASURING * budget, clock=job.clock)
        known = known.with_row(context, curve)
        _keep(session, Prices.of({context: curve}), others)
        yield known


def _keep(session: Session, prices: Prices, others: OtherPrograms) -> None:
    prices.trusted = not (others.busy or restless(prices.curve()))
    keep(session, prices)


def _fill(session: Session, tokens: Sequence[int], clock: Clock, until: float) -> bool:
    """Fill the cache with `tokens`; False if this would take longer than `until`."""
    while len(session.tokens) < len(tokens):
        held, before = len(session.tokens), clock()
        session.prefill(tokens[held : held + _CHUNK])
        chunks = (len(tokens) - len(session.tokens)) / _CHUNK
        if clock() + chunks * (clock() - before) > until:
            return False
    return True
