"""What prices mean: which draft lengths pay at which acceptance, and with how many threads. And measuring them well.

The arithmetic is Leviathan et al. 2023: where each drafted token is accepted with the same chance, whatever came
before it, a round over K of them commits (1 - a^(K+1)) / (1 - a) tokens. It takes a pass over 1 + K tokens and K steps
of the drafter.
"""

from __future__ import annotations

import itertools
import math
import operator
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

from ..backends import Device, Interrupt, Session, context_length, open_model, require_same_tokens
from ..backends.machine import OtherPrograms
from ..errors import ModelError, OptionError
from ..prices import BASE, Clock, Curve, Prices, filler, keep, measure, measure_here, restless

WIDEST = 32  #: widths measured are 1 to this many tokens
CONTEXTS = (1024, 4096, 16384, 65536)  #: cache lengths measured beside that at load, where the context is longer
TYPICAL = 0.7  #: the acceptance by which thread counts are compared

_COMPARING = 0.4  # share of the budget for comparing thread counts
_MEASURING = 0.5  # share of the time for a cache length that is left to measure there, once it is filled
_CHUNK = 512
_CHEAPEST, _DEAREST = 0.7, 2.0  # of a plain pass, and of as many plain passes: what a pass may cost to be believed

#: Told what is being measured and the share of all done, from 0 to 1.
OnProgress = Callable[[str, float], None]
#: Opens the sessions of a target and of its draft, if it has one, with so many threads.
Opener = Callable[[int], AbstractContextManager[tuple[Session, Session | None]]]


#: The chance that a drafted token is accepted once all before it were: the same for all, or by depth; then the last
#: one holds for all that is deeper.
Chances = float | Sequence[float]


def plausible(curve: Sequence[float]) -> bool:
    """Whether such prices can be true but for noise: no pass costs less than a plain one, nor much more than its tokens
    would cost alone. What follows from others, "4 tokens for the price of 0.0", is not to be shown."""
    plain = curve[0] if curve else 0.0
    if not 0 < plain < math.inf or restless(curve):
        return False
    return all(_CHEAPEST * plain <= seconds <= _DEAREST * n * plain for n, seconds in enumerate(curve, 1))


def committed(acceptance: Chances, k: int) -> float:
    """Tokens that a round over `k` drafted ones commits on the average."""
    each = acceptance if isinstance(acceptance, Sequence) else (acceptance,)
    chances = (each[min(depth, len(each) - 1)] for depth in range(k))
    return sum(itertools.accumulate(chances, operator.mul, initial=1.0))


def speedup(curve: Sequence[float], step: float, acceptance: Chances, k: int) -> float:
    """How many times faster than plain decoding rounds of `k` drafted tokens are; `curve` is as `Prices.curve`.

    Args:
        step: seconds that the drafter takes for a token; 0 for a look-up.
    """
    # A wider pass that seems cheaper than a plain one is noise, and would be a gain of nothing.
    return committed(acceptance, k) * curve[0] / (max(curve[0], curve[k]) + k * step)


class Best(NamedTuple):
    """The draft length that pays best, 0 where none does, and its speedup."""

    k: int
    speedup: float


def best(curve: Sequence[float], step: float, acceptance: Chances) -> Best:
    """The best draft length of those priced, the shortest of equals."""
    k = max(range(len(curve)), key=lambda k: (speedup(curve, step, acceptance, k), -k))
    return Best(k, speedup(curve, step, acceptance, k))


def ceiling(curve: Sequence[float], step: float) -> Best:
    """What is reached if every drafted token is right: no drafter of this step price can do better."""
    return best(curve, step, 1.0)


def break_even(curve: Sequence[float], step: float) -> float | None:
    """The least acceptance, to a hundredth, from which on some draft pays; None where none ever does."""
    return next((percent / 100 for percent in range(101) if best(curve, step, percent / 100).k), None)


def thread_counts(cores: int) -> list[int]:
    """The thread counts worth comparing on so many physical cores: one, and quarters of all."""
    return sorted({1, *(math.ceil(cores * quarter / 4) for quarter in range(1, 5))})


def cache_lengths(context: int) -> list[int]:
    """The cache lengths worth measuring in a session of `context` tokens, its full length with them."""
    full = context - WIDEST
    lengths = [length for length in CONTEXTS if length <= full]
    return [*lengths, full] if full >= 2 * max([BASE, *lengths]) else lengths


@dataclass(frozen=True, slots=True)
class Measured:
    """What was measured with one thread count.

    `rows` holds seconds for 1, 2, ... tokens by tokens in the cache, `between` the widths of a row that were not timed
    (see `Curve`); `step` the seconds of a draft model's step.
    """

    threads: int
    rows: Mapping[int, Sequence[float]]
    step: float | None = None
    between: Mapping[int, Collection[int]] = field(default_factory=dict)

    def with_row(self, context: int, row: Curve) -> Measured:
        """This, and what was measured with `context` tokens in the cache."""
        rows, between = {**self.rows, context: tuple(row)}, {**self.between, context: row.between}
        return replace(self, rows=rows, between=between)

    @property
    def curve(self) -> Sequence[float]:
        """At the shortest cache."""
        return self.rows[min(self.rows)]

    @property
    def drafting(self) -> float:
        """Seconds that drafting a token takes; nothing where there are only look-ups."""
        return self.step or 0.0

    @property
    def speed(self) -> float:
        """Tokens per second at the typical acceptance and the draft length that is best there."""
        return best(self.curve, self.drafting, TYPICAL).speedup / self.curve[0]


def fastest(measured: Sequence[Measured]) -> Measured:
    """The one with the most tokens per second; of those within 2% of it, the one with the fewest threads."""
    top = max(each.speed for each in measured)
    return min((each for each in measured if each.speed >= 0.98 * top), key=lambda each: each.threads)


def opener(target: Path, draft: Path | None, device: Device, interrupt: Interrupt) -> Opener:
    """Opens these files on `device`, with other thread counts."""

    @contextmanager
    def opened(threads: int) -> Iterator[tuple[Session, Session | None]]:
        asked = replace(device, threads=threads, exact=0)
        with closing(open_model(target, asked, interrupt)) as model:
            context = context_length(asked, model)
            with closing(model.session(context)) as session:
                if session.reach is not None:
                    raise ModelError(
                        f"{model.description} keeps a recurrent state that cannot go back, so no draft can be taken "
                        "back and there is nothing to tune; take a model with attention in every layer"
                    )
                if draft is None:
                    yield session, None
                    return
                with closing(open_model(draft, asked.of_draft(), interrupt)) as second:
                    require_same_tokens(model.vocabulary, second.vocabulary)
                    with closing(second.session(context)) as drafting:
                        yield session, drafting

    return opened


def tune(
    opened: Opener,
    threads: Sequence[int],
    *,
    budget: float = 60.0,
    on_progress: OnProgress = lambda _what, _share: None,
    clock: Clock = time.perf_counter,
) -> Iterator[Measured]:
    """Measure prices: with every thread count briefly, then with the best one at longer caches.

    Yields what is known of a thread count, again when more is. All of it is kept for the next load already, but for
    what a busy machine spoilt: leaving at any time loses nothing.

    Args:
        budget: seconds it may take, about; loading and the least that must be measured are not counted.

    Raises:
        OptionError: a budget that is none.
        and as `open_model` and `require_same_tokens`.
    """
    if not 1 <= budget <= 86400:
        raise OptionError(f"budget is {budget}; it must be from 1 to 86400 seconds")
    return _tune(opened, threads, _Job(budget, clock, on_progress, (0.0, 1.0)))


class _Job:
    """A share of all there is to do: its time, and whom to tell how far it is."""

    def __init__(self, budget: float, clock: Clock, on_progress: OnProgress, span: tuple[float, float]) -> None:
        self.budget = budget
        self.clock = clock
        self._on_progress = on_progress
        self._first, self._last = span

    def part(self, first: float, last: float) -> _Job:
        """The part from the share `first` to the share `last` of this."""
        width = self._last - self._first
        span = (self._first + first * width, self._first + last * width)
        return _Job((last - first) * self.budget, self.clock, self._on_progress, span)

    def teller(self, what: str) -> Callable[[float], None]:
        """Says what is being done, and which share of it is done."""
        return lambda done: self._on_progress(what, self._first + done * (self._last - self._first))


def _tune(opened: Opener, threads: Sequence[int], job: _Job) -> Iterator[Measured]:
    known: list[Measured] = []
    each = _COMPARING / len(threads)
    for i, count in enumerate(threads):
        with opened(count) as (session, drafting):
            known.append(_measure_short(session, drafting, count, job.part(i * each, (i + 1) * each)))
        yield known[-1]
    chosen = fastest(known)
    with opened(chosen.threads) as (session, _):
        yield from _measure_long(session, chosen, job.part(_COMPARING, 1.0))


def _measure_short(session: Session, drafting: Session | None, threads: int, job: _Job) -> Measured:
    """The price curve at the cache length of every load, and the draft's step."""
    what = f"measuring with {threads} thread{'s' * (threads > 1)}"
    first = job.part(0, 0.9 if drafting is not None else 1)
    with OtherPrograms() as others:
        curve = measure(session, first.teller(what), widest=WIDEST, budget=first.budget, clock=job.clock)
    _keep(session, Prices(curve.timed), others)
    step = None
    if drafting is not None:
        rest = job.part(0.9, 1)
        with OtherPrograms() as others:
            stepping = Prices(measure(drafting, rest.teller(what), budget=rest.budget, clock=job.clock).timed)
        _keep(drafting, stepping, others)
        step = stepping.plain()
    return Measured(threads, {}, step).with_row(BASE, curve)


def _measure_long(session: Session, known: Measured, job: _Job) -> Iterator[Measured]:
    """The same at longer caches, from short to long, as far as they can be filled in time."""
    until = job.clock() + job.budget
    contexts = cache_lengths(session.context)
    for i, context in enumerate(contexts):
        tell = job.part(i / len(contexts), (i + 1) / len(contexts)).teller(f"measuring with {context} tokens before")
        tell(0.0)
        if not _fill(session, filler(session, context), job.clock, until):
            return
        budget = (until - job.clock()) / (len(contexts) - i)
        with OtherPrograms() as others:
            curve = measure_here(session, tell, widest=WIDEST, budget=_MEASURING * budget, clock=job.clock)
        known = known.with_row(context, curve)
        _keep(session, Prices.of({context: curve}), others)
        yield known


def _keep(session: Session, prices: Prices, others: OtherPrograms) -> None:
    prices.trusted = not (others.busy or restless(prices.curve()))
    keep(session, prices)


def _fill(session: Session, tokens: Sequence[int], clock: Clock, until: float) -> bool:
    """Whether the cache holds `tokens` now; given up where that would last too long."""
    while len(session.tokens) < len(tokens):
        held, before = len(session.tokens), clock()
        session.prefill(tokens[held : held + _CHUNK])
        chunks = (len(tokens) - len(session.tokens)) / _CHUNK
        if clock() + chunks * (clock() - before) > until:
            return False
    return True
