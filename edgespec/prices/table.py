"""Seconds of a pass by cache length and width."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence

import numpy as np

_FIRST = 512  # the shortest cache that gets a row of its own unasked; below it attention hardly counts
_NEAR = 2**0.5  # a row speaks for cache lengths that differ by this factor at most

#: Seconds for 1, 2, ... tokens; None where nothing is known.
Row = Sequence[float | None]


class Table:
    """Rows at a few cache lengths, straight lines between them: attention reads the cache once for every token of it.

    A row that was not measured holds the widths that passes showed there. The others take the measured price and a
    surcharge that rises with the cache: the line through the last two measured rows, else what the widths seen at
    longer caches suggest. Plain steps have a surcharge of their own, see `Prices`.

    Widths that there was no time to measure are gaps of the first row. They lie on lines between their neighbours until
    passes show what they cost, there or at a longer cache: kernels take tokens by fours and eights, and what is between
    can be dearer than both its neighbours.

    Args:
        rows: by tokens in the cache. The row of the shortest cache was measured, and it knows its first width and its
            last; it may have holes. Of the others those without holes were measured. All seconds are positive. A
            row that is shorter than the longest goes on by its mean slope if it was measured.
    """

    def __init__(self, rows: Mapping[int, Row]) -> None:
        self.widest = max(map(len, rows.values()))
        self._first = min(rows)
        self._gaps = {n for n, s in enumerate(rows[self._first], 1) if s is None}
        measured = sorted(context for context, row in rows.items() if context == self._first or None not in row)
        self._measured = {context: _filled(bridged(rows[context]), self.widest) for context in measured}
        self._rows = {context: row[:] for context, row in self._measured.items()}
        self._seen: dict[int, set[int]] = {}
        for context, row in rows.items():
            if context not in self._measured:
                self._rows[context] = [0.0 if s is None else s for s in row] + [0.0] * (self.widest - len(row))
                self._seen[context] = {n for n, s in enumerate(row, 1) if s is not None}
        self._last = max(self._measured)
        self._rise: list[float] = []
        self._asked = self._near = -1
        self.refit()

    @property
    def shortest(self) -> int:
        """The cache length of the first row."""
        return self._contexts[0]

    @property
    def rows(self) -> dict[int, tuple[float | None, ...]]:
        """As the table was made, and what it learned."""
        return {
            context: tuple(s if self._is_known(context, n) else None for n, s in enumerate(row, 1))
            for context, row in self._rows.items()
        }

    def at(self, context: int) -> list[float]:
        """The curve at any cache length."""
        place = bisect_right(self._contexts, context)
        row = self._rows[self._contexts[max(0, place - 1)]]
        if place == 0:
            return row[:]
        further = context - self._contexts[place - 1]
        if place == len(self._contexts):
            return [s + rise * further for s, rise in zip(row, self._rise, strict=True)]
        above = self._contexts[place]
        share = further / (above - self._contexts[place - 1])
        return [a + share * (b - a) for a, b in zip(row, self._rows[above], strict=True)]

    def nearest(self, context: int) -> int:
        """The cache length of the row that is nearest to `context`."""
        return min(self._contexts, key=lambda own: max(own / max(1, context), max(1, context) / own))

    def row_for(self, context: int) -> int:
        """The cache length of the row that what is seen at `context` belongs to; a new one where none is near."""
        if context != self._asked:
            self._asked, self._near = context, self._find_row(max(1, context))
        return self._near

    def _find_row(self, context: int) -> int:
        nearest = self.nearest(context)
        power = max(_FIRST, 1 << round(math.log2(context)))
        if context < _FIRST / _NEAR or nearest / _NEAR <= context <= nearest * _NEAR or power in self._rows:
            return nearest
        self._rows[power] = [0.0] * self.widest
        self._seen[power] = set()
        self.refit()
        return power

    def is_measured(self, row: int) -> bool:
        return row in self._measured

    def move(self, row: int, n: int, by: float) -> None:
        """Correct one price by the log `by`; it is known from now on, and `refit` says what that means for others."""
        self._rows[row][n - 1] *= math.exp(by)
        if row in self._seen:
            self._seen[row].add(n)
            return
        self._measured[row][n - 1] = self._rows[row][n - 1]  # what is not known at longer caches follows
        if row == self._first:
            self._gaps.discard(n)

    def scaled(self, logs: Sequence[float]) -> Table:
        """Passes over 1, 2, ... tokens dearer by the logs given."""
        rows = self.rows.items()
        return Table({c: [s and s * math.exp(by) for s, by in zip(row, logs, strict=True)] for c, row in rows})

    def refit(self) -> None:
        """Find the surcharge by what is known, and with it what is not."""
        self._contexts = sorted(self._rows)
        self._rise = self._measured_rise() or self._learned_rise()
        self._bridge()
        for context, seen in self._seen.items():
            model = self._model(context)
            for n in range(1, self.widest + 1):
                if n not in seen:
                    self._rows[context][n - 1] = model[n - 1]

    def _bridge(self) -> None:
        """Draw the lines over the gaps anew, by what longer caches say of them, less their surcharge."""
        if not self._gaps:
            return
        base = self._rows[self._first]
        known: list[float | None] = [None if n in self._gaps else s for n, s in enumerate(base, 1)]
        for context, seen in sorted(self._seen.items(), reverse=True):  # the shortest has the last word
            for n in seen & self._gaps:
                surcharge = self._rise[n - 1] * (context - self._first)
                known[n - 1] = max(self._rows[context][n - 1] - surcharge, base[0])
        row = bridged(known)
        for n in self._gaps:
            base[n - 1] = self._measured[self._first][n - 1] = row[n - 1]

    def _is_known(self, context: int, n: int) -> bool:
        if context == self._first:
            return n not in self._gaps
        return context in self._measured or n in self._seen[context]

    def _measured_rise(self) -> list[float]:
        """Seconds a cached token, for each width, by the last two measured rows."""
        if len(self._measured) < 2:
            return []
        (shorter, low), (longer, high) = list(self._measured.items())[-2:]
        return [max(0.0, b - a) / (longer - shorter) for a, b in zip(low, high, strict=True)]

    def _learned_rise(self) -> list[float]:
        """The same by least squares over what passes showed: arithmetic grows with the width, reading does not."""
        sums = {True: [0.0, 1e-12], False: [0.0, 1e-12]}
        base = self._measured[self._last]
        for context, seen in self._seen.items():
            for n in seen - self._gaps if context > self._last else ():
                place = _share(n) * (context - self._last)
                sums[n == 1][0] += place * (self._rows[context][n - 1] - base[n - 1])
                sums[n == 1][1] += place * place
        plain, wide = (max(0.0, product / square) for product, square in (sums[True], sums[False]))
        return [plain, *(_share(n) * wide for n in range(2, self.widest + 1))]

    def _model(self, context: int) -> list[float]:
        if context > self._last:
            return [s + r * (context - self._last) for s, r in zip(self._measured[self._last], self._rise, strict=True)]
        return Table(self._measured).at(context)


def _share(n: int) -> float:
    """How much of the surcharge a pass over n tokens pays, next to a plain step: between once and n times."""
    return (1 + n) / 2


def bridged(row: Row) -> list[float]:
    """A row whose holes lie on lines between what is known; its ends are."""
    known = {n: s for n, s in enumerate(row) if s is not None}
    return [float(s) for s in np.interp(range(len(row)), list(known), list(known.values()))]


def _filled(row: Sequence[float], widest: int) -> list[float]:
    slope = max(0.0, (row[-1] - row[0]) / max(1, len(row) - 1))
    return [*row, *(row[-1] + slope * i for i in range(1, widest - len(row) + 1))]
