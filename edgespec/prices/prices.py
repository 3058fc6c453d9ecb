"""The price of a pass, corrected by the passes made."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from .drift import Cell, Drift, Pass, Relearning, agree, clipped, least
from .table import Row, Table

BASE = 64  #: tokens in the cache while prices are measured at load

_FAR = 0.15  # log; slow corrections that add up to more are a slow drift
_CALM = 0.12  # log; a level nearer than this is the machine as it was
_SHAPE = 0.3  # log; a drift of wider passes that plain steps deny, and is no more, was of the widths seen only
_REFIT = 16  # passes of a width between looks at what they say of longer caches
_TAUGHT = 3  # passes that make a price worth keeping
_POSSIBLE = 0.7  # of a plain step; no wide pass takes less
_NEWS = 0.35  # log; so much cheaper than measured one pass is by no accident
_DEAREST = 1.25  # times the cheapest wider pass, what a plain step takes at most; more than 1, for prices vary
_APART = 2.0  # log; the most that wider passes are dearer than plain steps are, each beside what was measured
_RELEVEL = 3  # passes after which a kind's level is known again


class Prices:
    """Seconds of a pass by width and cache length.

    The machine's state is a level for plain steps and one for wider passes, on top of a table that rounds correct
    slowly. The plain step has a level of its own because all is weighed against it: were it dearer because drafts
    are, no draft would ever look too dear. When wider passes drift, it follows downwards only. So it is rather too
    cheap than too dear, plain steps are taken, and they tell.

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
        self._table = table
        self._calm: Table | None = None  # the table before a drift
        self._known = {(row, n) for row, known in table.rows.items() for n, s in enumerate(known, 1) if s is not None}
        self._cells: dict[tuple[int, int], Cell] = {}
        # Plain steps are seldom seen: fewer must do.
        self._plain, self._wide = Drift(quick=3, gain=0.15), Drift(quick=4, gain=0.05)
        self._epoch = 0
        self._rounds = 0
        self._drifted_at: int | None = None
        self._last: dict[int, int] = {}
        self._context = table.shortest
        self._curve: list[float] | None = None
        self._taught: list[float] = []  # the same as passes taught it, possible or not

    def curve(self, context: int | None = None) -> Sequence[float]:
        """Seconds for widths 1 to `widest` with `context` tokens in the cache; None: as many as at the last pass."""
        if context is not None and context != self._context:
            self._context, self._curve = context, None
        if self._curve is None:
            plain, wide = math.exp(self._plain.log), math.exp(self._wide.log)
            self._taught = [wide * seconds for seconds in self._table.at(self._context)]
            self._taught[0] *= plain / wide
            # A few stalls in a row look like a drift of plain steps, and while drafts pay none follows that denies it.
            plain = min([self._taught[0], *(_DEAREST * seconds for seconds in self._taught[1:])])
            self._curve = [plain, *self._taught[1:]]
        return self._curve

    def calm(self, context: int) -> Sequence[float]:
        """`curve`, were the machine at the pace at which it was measured."""
        return (self._calm or self._table).at(context)

    def price(self, n: int, context: int | None = None) -> float:
        """Seconds that a pass over `n` >= 1 tokens takes; beyond the widths measured, by their mean slope."""
        curve = self.curve(context)
        if n <= self.widest:
            return curve[n - 1]
        slope = max(0.0, (curve[-1] - curve[0]) / max(1, self.widest - 1))
        return curve[-1] + slope * (n - self.widest)

    def plain(self, context: int | None = None) -> float:
        """Seconds of a plain step."""
        return self.curve(context)[0]

    @property
    def since_drift(self) -> int | None:
        """Rounds since the machine last changed its pace; None where it did not."""
        return None if self._drifted_at is None else self._rounds - self._drifted_at

    def unsure(self, n: int) -> bool:
        """Whether the price of `n` tokens is a guess since the last drift; passes over `n` tokens settle it."""
        if (self._plain if n == 1 else self._wide).relearning is not None:
            return True
        if self._epoch == 0 or n == 1:
            return False
        cell = self._cells.get((self._table.row_for(self._context), n))
        if cell is None or cell.epoch != self._epoch:
            return True
        return cell.relearning is not None and not cell.relearning.certain

    def unseen(self, n: int) -> int:
        """Rounds since a pass over `n` tokens was last seen; all rounds if none was."""
        return self._rounds - self._last.get(n, 0)

    def rescale(self, factor: float) -> None:
        """The machine is dearer by `factor` today. What is kept stays; only a machine that is faster is believed."""
        self._plain.log = self._wide.log = math.log(factor)
        if abs(self._plain.log) > _CALM:
            self._begin_epoch()
        self._settle()
        self._curve = None

    def observe(self, n: int, context: int, seconds: float) -> None:
        """Correct by a pass over a chain of `n` tokens that began with `context` tokens in the cache."""
        if not 1 <= n <= self.widest or not 0 < seconds < math.inf:
            return
        self._rounds += 1
        self.curve(context)  # brings `_taught` up to date
        seen = Pass(self._table.row_for(context), n, math.log(seconds / self._taught[n - 1]), self._rounds)
        cell, kind = self._cell(seen.row, n), self._plain if n == 1 else self._wide
        cell.seen += 1
        self._curve = None
        self.changed = True
        if n > 1 and n not in self._last and self._calm is None and seconds > _POSSIBLE * self.plain(context):
            seen = self._confirm(seen)
        self._last[n] = self._rounds
        if kind.relearning is not None:
            kind.hear(seen.surprise)
            self._settle()
        elif cell.relearning is not None:
            self._relearn(seen, cell)
        else:
            proved = kind.hold_back(seen)
            if (drift := kind.found()) is not None:
                self._drift(kind, drift, kind.onset(drift))
            elif proved is not None:
                self._learn(kind, proved)
        if n == 1 and self._plain.relearning is None:
            # Wider passes follow plain steps upwards: without an end, where stalls come and go.
            dearer = math.log(self._table.at(context)[0] / self.calm(context)[0]) + self._plain.log
            self._wide.log = min(self._wide.log, dearer + _APART)

    def _confirm(self, seen: Pass) -> Pass:
        """Compare the first pass of a width with what was measured before; the pass at the prices that follow.

        It may have been measured beside another program. A price that is too low corrects itself; one that is too high
        keeps its pass from being bought. So one pass that is much cheaper is believed, of all widths not yet seen.
        """
        if seen.surprise >= -_NEWS:
            return seen
        for n in range(2, self.widest + 1):
            if (seen.row, n) in self._known and n not in self._last:
                self._table.move(seen.row, n, seen.surprise)
        self._table.refit()
        self._curve = None
        return seen._replace(surprise=0.0)

    def rows(self) -> dict[int, tuple[float | None, ...]]:
        """What is worth keeping, see `Table`: the machine without its company."""
        table = self._calm or self._table
        rows = {
            context: tuple(s if self._worth_keeping(context, n) else None for n, s in enumerate(row, 1))
            for context, row in table.rows.items()
        }
        return {context: row for context, row in rows.items() if set(row) != {None}}

    def _worth_keeping(self, row: int, n: int) -> bool:
        cell = self._cells.get((row, n))
        return (row, n) in self._known or (cell is not None and cell.seen >= _TAUGHT)

    def _cell(self, row: int, n: int) -> Cell:
        cell = self._cells.get((row, n))
        if cell is None:
            cell = self._cells[row, n] = Cell(0)
            if (row, n) not in self._known:
                cell.renew(self._epoch)
        if cell.epoch != self._epoch:
            cell.renew(self._epoch)
        return cell

    def _relearn(self, seen: Pass, cell: Cell) -> None:
        if cell.relearning is None:
            return
        self._table.move(seen.row, seen.n, cell.relearning.hear(seen.surprise))
        if cell.relearning.done:
            cell.relearning = None
        self._table.refit()

    def _learn(self, kind: Drift, seen: Pass) -> None:
        """Take a pass that is known to be no drift into the table."""
        cell = self._cell(seen.row, seen.n)
        cell.late.append(seen.surprise)
        if len(cell.late) == cell.late.maxlen and agree(cell.late, 1.6 * kind.threshold):
            # The others do not show it, or it were a drift: this width alone has another price.
            self._table.move(seen.row, seen.n, least(cell.late))
            cell.late.clear()
            return
        step = kind.gain * clipped(seen.surprise)
        self._table.move(seen.row, seen.n, step)
        if not self._table.is_measured(seen.row):  # it is as likely the longer cache
            if cell.seen % _REFIT == 0:
                self._table.refit()
            return
        cell.moved += step
        if abs(cell.moved) > _FAR:
            drift = cell.moved
            self._table.move(seen.row, seen.n, -drift)
            self._drift(kind, drift, ())
            self._cell(seen.row, seen.n).relearning = None

    def _drift(self, kind: Drift, by: float, passes: Sequence[Pass]) -> None:
        """One kind of passes has another level, as `passes` showed; the other kind's may be another too."""
        onset = passes[0].round if passes else self._rounds
        self._begin_epoch()
        kind.log += by
        kind.relearning = None
        for seen in passes:
            self._relearn(seen._replace(surprise=seen.surprise - by), self._cell(seen.row, seen.n))
        other = self._plain if kind is self._wide else self._wide
        self._follow(other, by, [seen.surprise for seen in other.release(onset)])
        self._settle()

    def _begin_epoch(self) -> None:
        if self._calm is None:
            self._calm = Table(self._table.rows)
        self._epoch += 1
        self._drifted_at = self._rounds

    def _follow(self, other: Drift, by: float, seen: Sequence[float]) -> None:
        """The other kind after a drift `by` of this one. `seen` are its own surprises meanwhile."""
        denied = any(surprise / by < 0.5 for surprise in seen)
        moved = 0.0
        if not denied and (by < 0 or other is self._wide):
            moved = by
        if other is self._wide and not seen and abs(self._plain.log) <= _CALM:
            moved = -other.log  # plain steps are what they were: the company has left
        other.log += moved
        other.relearning = Relearning(_RELEVEL)
        for surprise in seen:
            other.hear(surprise - moved)

    def _settle(self) -> None:
        """Once both levels are known: back to the calm table, or a faster machine than was measured."""
        if self._plain.relearning is not None or self._wide.relearning is not None:
            return
        if self._calm is None:
            return
        if abs(self._plain.log) <= _CALM and abs(self._wide.log) <= _SHAPE:
            self._table = self._calm
            self._epoch += 1
            self._plain.release()
            self._wide.release()
        elif max(self._plain.log, self._wide.log) <= _CALM:  # faster than was measured, so that is what it can do
            self._table = self._table.scaled(self._plain.log, self._wide.log)
        else:
            return
        self._calm = self._curve = None
        self._plain.log = self._wide.log = 0.0
