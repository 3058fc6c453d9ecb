"""The price of a pass, corrected by the passes made."""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from .pace import CHANGE, GAIN, Pace
from .table import Row, Table

BASE = 64  #: tokens in the cache while prices are measured at load

_PLAIN, _WIDE = 3, 4  # passes in a row that prove a change of pace; plain steps are seldom seen
_CELL = 9  # passes of one width of which the median is taken
_MOST = 0.1  # log; small corrections of a measured price add up to no more, for they may be a slow change of pace
_REFIT = 16  # passes of a width between looks at what they say of longer caches
_TAUGHT = 3  # passes that make a price worth keeping
_POSSIBLE = 0.7  # of a plain step; no wide pass takes less
_NEWS = 0.35  # log; so much cheaper than measured one pass is by no accident


@dataclass
class _Cell:
    """What passes of one width, at about one cache length, taught."""

    #: Rounds, and the logs of seconds over the table's.
    latest: deque[tuple[int, float]] = field(default_factory=lambda: deque(maxlen=_CELL))
    seen: int = 0
    #: The log of all small corrections.
    moved: float = 0.0

    def since(self, round_: int) -> list[float]:
        return [surprise for seen, surprise in self.latest if seen >= round_]

    def shift(self, by: float) -> None:
        self.latest = deque(((seen, surprise - by) for seen, surprise in self.latest), maxlen=_CELL)


class Prices:
    """Seconds of a pass by width and cache length.

    A price is that of the table, which rounds correct slowly, times the machine's pace: one for plain steps and one for
    wider passes, between which narrow ones may lie. The plain step has a pace of its own because all is weighed against
    it: were it dearer because drafts are, no draft would ever look too dear. When wider passes change their pace, it
    follows downwards only. It takes no longer than the cheapest wider pass, unless it did when it was measured.

    Args:
        seconds: measured seconds for 1, 2, ... tokens with about `BASE` tokens in the cache; at least one, all
            positive. They need not rise. None, but for the first and the last, where a width was not measured.
    """

    def __init__(self, seconds: Row) -> None:
        self._set(Table({BASE: seconds}))

    @classmethod
    def of(cls, rows: Mapping[int, Row]) -> Prices:
        """Prices known at several cache lengths: seconds for widths 1, 2, ... by tokens in the cache, see `Table`."""
        prices = cls.__new__(cls)
        prices._set(Table(rows))
        return prices

    def _set(self, table: Table) -> None:
        self.widest = table.widest
        self.changed = False  #: whether passes taught anything worth keeping
        #: Whether they were measured on a quiet machine; if not, they serve until they are measured anew.
        self.trusted = True
        #: Seconds that the first pass of another width than the one before takes beyond those in a row of its width,
        #: once these have settled (`Session.settling`).
        self.switching = 0.0
        self._table = table
        self._known = {
            (row, n): s for row, known in table.rows.items() for n, s in enumerate(known, 1) if s is not None
        }
        self._level = 0.0  # log; what plain steps of the table take over those of `_known`
        self._cells: dict[int, dict[int, _Cell]] = {}  # by cache length of the row, and width
        self._plain, self._wide = Pace(_PLAIN), Pace(_WIDE)
        self._rounds = 0
        self._drifted = False  # whether the machine has changed its pace
        self._last: dict[int, int] = {}
        self._context = table.shortest
        self._curve: list[float] | None = None
        self._row: list[float] = []  # of the table, for the same cache length

    def curve(self, context: int | None = None) -> Sequence[float]:
        """Seconds for widths 1 to `widest` with `context` tokens in the cache; None: as many as at the last pass."""
        if context is not None and context != self._context:
            self._context, self._curve = context, None
        if self._curve is None:
            row = self._row = self._table.at(self._context)
            narrow, wide = max(1, self._wide.narrowest - 1), math.exp(self._wide.log)
            self._curve = [seconds * math.exp(self._log(n)) for n, seconds in enumerate(row[:narrow], 1)]
            self._curve += [seconds * wide for seconds in row[narrow:]]
            if self._plain.log > 0:
                self._curve[0] = _plain_price(self._curve, row[0])
        return self._curve

    def calm(self, context: int) -> Sequence[float]:
        """`curve`, were the machine at the pace at which it was measured."""
        return self._table.at(context)

    def price(self, n: int, context: int | None = None) -> float:
        """Seconds that a pass over `n` >= 1 tokens takes; beyond the widths measured, by their mean slope."""
        curve = self.curve(context)
        return curve[n - 1] if n <= self.widest else curve[-1] + self.slope(context) * (n - self.widest)

    def slope(self, context: int | None = None) -> float:
        """Seconds that one more token adds to a pass, the mean over all widths measured."""
        curve = self.curve(context)
        return max(0.0, (curve[-1] - curve[0]) / max(1, self.widest - 1))

    def plain(self, context: int | None = None) -> float:
        """Seconds of a plain step."""
        return self.curve(context)[0]

    @property
    def slowdown(self) -> float:
        """How many times as long as measured plain steps take, at least once: more while the machine is slow."""
        return math.exp(max(0.0, self._plain.log))

    def unsure(self, n: int) -> bool:
        """Whether the price of `n` tokens is a guess since the pace changed; passes of its kind settle it."""
        return not self._pace(n).sure

    def doubted(self, n: int) -> bool:
        """Whether the price of `n` tokens may have changed: the latest pass of its kind took another time."""
        return self._pace(n).doubted

    def unseen(self, n: int) -> int:
        """Rounds since a pass over `n` tokens was last seen; all rounds if none was."""
        return self._rounds - self._last.get(n, 0)

    def rescale(self, factor: float) -> None:
        """Plain steps are dearer by `factor` today, and wider passes are assumed to be. What is kept stays."""
        log = math.log(factor)
        self._wide.assume(log, self._rounds + 1)
        if abs(log) <= CHANGE:
            self._plain.log = log
        else:
            self._plain.assume(log, self._rounds + 1)
            self._drifted = True
        self._curve = None

    def observe(self, n: int, context: int, seconds: float) -> None:
        """Correct by a pass over a chain of `n` tokens that began with `context` tokens in the cache."""
        if not 1 <= n <= self.widest or not 0 < seconds < math.inf:
            return
        self._rounds += 1
        row = self._table.row_for(context)
        cell = self._cells.setdefault(row, {}).setdefault(n, _Cell())
        if n > 1 and n not in self._last and not self._drifted and seconds > _POSSIBLE * self.plain(context):
            self._confirm(row, self._surprise(n, context, seconds))
        surprise = self._surprise(n, context, seconds)
        self._last[n] = self._rounds
        self._context, self._curve = context, None
        self.changed = True
        cell.seen += 1
        cell.latest.append((self._rounds, surprise))
        if (row, n) not in self._known:
            self._teach(row, n, cell)
        elif self._is_expected(n, surprise):
            self._wide.forget_narrower()
        else:
            self._follow(row, n, cell, surprise)
        self._believe_faster()

    def rows(self) -> dict[int, tuple[float | None, ...]]:
        """What is worth keeping, see `Table`: the machine without its company."""
        rows = {
            context: tuple(self._kept(context, n, s) for n, s in enumerate(row, 1))
            for context, row in self._table.rows.items()
        }
        return {context: row for context, row in rows.items() if set(row) != {None}}

    def _pace(self, n: int) -> Pace:
        return self._plain if n == 1 else self._wide

    def _log(self, n: int) -> float:
        """The log of the pace of passes over `n` tokens.

        Those between a plain step and the passes that showed the pace of wider ones lie between: where a processor
        computes more slowly than when it was measured, the widest passes are much dearer and narrow ones little, for
        these wait for the weights.
        """
        plain, wide = self._plain.log, self._wide.log
        share = min(1.0, (n - 1) / max(1, self._wide.narrowest - 1))
        return plain + share * (wide - plain)

    def _is_expected(self, n: int, surprise: float) -> bool:
        """Whether a pass narrower than those that showed the pace took what lies between."""
        return 1 < n < self._wide.narrowest and abs(surprise - self._log(n)) <= CHANGE

    def _surprise(self, n: int, context: int, seconds: float) -> float:
        is_known = context == self._context and self._curve is not None
        return math.log(seconds / (self._row if is_known else self._table.at(context))[n - 1])

    def _kept(self, row: int, n: int, seconds: float | None) -> float | None:
        """The price to keep for later runs: half the way to what passes of this run taught, else what was known before.

        What counts is the price beside that of a plain step, which is timed in every run. A pace is found by passes of
        a few widths, and says little of the others. When it was kept for all, random differences between runs made wide
        passes cheaper from run to run and never dearer: in 20 simulated runs whose pace varied by 5%, widths that were
        not seen came to 0.80 of the true price (median of 20 machines; 0.45 at worst).
        """
        known, cell = self._known.get((row, n)), self._cells.get(row, {}).get(n)
        if seconds is None or cell is None or cell.seen < _TAUGHT or (row, n) == (self._table.shortest, 1):
            return known
        taught = seconds * math.exp(-self._level)
        return taught if known is None else math.sqrt(known * taught)  # half the way: it may have been company

    def _confirm(self, row: int, surprise: float) -> None:
        """Compare the first pass of a width with what was measured before.

        It may have been measured beside another program. A price that is too low corrects itself; one that is too high
        keeps its pass from being bought. So one pass that is much cheaper is believed, of all widths not yet seen.
        """
        if surprise >= -_NEWS:
            return
        for width in range(2, self.widest + 1):
            if (row, width) in self._known and width not in self._last:
                self._table.move(row, width, surprise)
        self._table.refit()
        self._curve = None

    def _teach(self, row: int, n: int, cell: _Cell) -> None:
        """Move a price that was not measured to the lower median of its passes, and of what was assumed while they are
        few: a cheaper pass is believed at once, for no hiccup makes a pass cheap."""
        pace = self._log(n)
        assumed = [-cell.moved] if cell.seen < _TAUGHT else []
        by = statistics.median_low([*assumed, *(surprise - pace for _, surprise in cell.latest)])
        cell.moved += by
        self._move(row, n, cell, by)
        if cell.seen <= _CELL or cell.seen % _REFIT == 0:
            self._table.refit()

    def _follow(self, row: int, n: int, cell: _Cell, surprise: float) -> None:
        """A pass of a width that was measured: it shows the pace of the machine, or on a calm one its own price."""
        pace = self._pace(n)
        if by := pace.observe(self._rounds, n, surprise):
            self._changed(pace, by)
        elif not pace.log:
            self._learn(row, n, cell, surprise)
        if n > 1 and self._wide.refuted:
            # Plain steps alone were slow, as first passes are: they may have been the exception.
            self._plain.assume(self._plain.log, self._rounds + 1)

    def _learn(self, row: int, n: int, cell: _Cell, surprise: float) -> None:
        """A pass of a measured width on a calm machine."""
        seen = cell.since(self._pace(n).since)
        if len(seen) == _CELL and abs(middle := statistics.median_low(seen)) > CHANGE:
            # The others do not show it, or it were a change of pace: this width alone has another price.
            cell.moved = 0.0
            self._move(row, n, cell, middle)
        elif abs(surprise) <= CHANGE and abs(cell.moved + GAIN * surprise) <= _MOST:
            cell.moved += GAIN * surprise
            self._move(row, n, cell, GAIN * surprise)

    def _move(self, row: int, n: int, cell: _Cell, by: float) -> None:
        if by:
            self._table.move(row, n, by)
            cell.shift(by)

    def _changed(self, pace: Pace, by: float) -> None:
        """One kind of passes is dearer by the log `by`; the other kind may be, too."""
        self._drifted = True
        other = self._plain if pace is self._wide else self._wide
        log = other.log
        if not other.saw(pace.since):
            if other is self._wide and not pace.log:
                log = 0.0  # plain steps are what they were: the company has left
            elif other is self._wide:
                log += by
            elif by < 0:  # but it does not become faster because drafts are no dearer any more
                log = max(log + by, min(log, pace.log))
        other.assume(log, pace.since)

    def _believe_faster(self) -> None:
        """Once both paces are known: a machine that is faster than was measured is what it can do."""
        paces = (self._plain, self._wide)
        if all(pace.sure and pace.log <= 0 for pace in paces) and any(pace.log for pace in paces):
            logs = [self._log(n) for n in range(1, self.widest + 1)]
            self._table = self._table.scaled(logs)
            self._level += self._plain.log
            for row in self._cells.values():
                for n, cell in row.items():
                    cell.shift(logs[n - 1])
            for pace in paces:
                pace.shift(pace.log)
            self._curve = None


def _plain_price(curve: Sequence[float], measured: float) -> float:
    """The price of a plain step, which is that of the cheapest wider pass at most.

    A single plain step between wide passes takes longer than one of several in a row, and three such may look like a
    change of pace. It costs no less than was measured, for a wider pass may have been measured to be the cheaper one.
    """
    return max(measured, min(curve))
