"""Seconds of a pass by cache length and width."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence

_FIRST = 512  # the shortest cache that gets a row of its own unasked; below it attention hardly counts
_NEAR = 2**0.5  # a row speaks for cache lengths that differ by this factor at most
_STEEPEST = 2.0  # what a row may become at a longer cache that nothing is known of


class Table:
    """Rows at a few cache lengths, straight lines between them: attention reads the cache once for every token of it.

    Beyond the longest row the last two rows' line goes on; with one row, nothing is known of the cache's part.

    Args:
        rows: seconds for 1, 2, ... tokens by tokens in the cache; all positive, at least one row and one width. A row
            that is shorter than the longest goes on by its mean slope.
    """

    def __init__(self, rows: Mapping[int, Sequence[float]]) -> None:
        self.widest = max(map(len, rows.values()))
        self._rows = {context: _filled(rows[context], self.widest) for context in sorted(rows)}
        self._contexts = list(self._rows)

    @property
    def rows(self) -> dict[int, tuple[float, ...]]:
        """Seconds for widths 1, 2, ... by cache length, from short to long."""
        return {context: tuple(row) for context, row in self._rows.items()}

    @property
    def shortest(self) -> int:
        """The cache length of the first row."""
        return self._contexts[0]

    def copy(self) -> Table:
        return Table(self._rows)

    def at(self, context: int) -> list[float]:
        """The curve at any cache length."""
        place = bisect_right(self._contexts, context)
        if place == 0 or len(self._contexts) == 1:
            return self._rows[self._contexts[0]][:]
        below, above = self._contexts[place - 1 : place + 1] if place < len(self._contexts) else self._contexts[-2:]
        share = (context - below) / (above - below)
        low, high = self._rows[below], self._rows[above]
        if share <= 1:
            return [a + share * (b - a) for a, b in zip(low, high, strict=True)]
        return [min(b + (share - 1) * max(0.0, b - a), _STEEPEST * b) for a, b in zip(low, high, strict=True)]

    def row_for(self, context: int) -> int:
        """The cache length of the row that what is seen at `context` belongs to; a new one where none is near."""
        nearest = min(self._contexts, key=lambda own: max(own, context) / max(1, min(own, context)))
        power = max(_FIRST, 1 << round(math.log2(max(1, context))))
        if context < _FIRST / _NEAR or nearest / _NEAR <= context <= nearest * _NEAR or power in self._rows:
            return nearest
        self._rows[power] = self.at(power)
        self._contexts = sorted(self._rows)
        self._rows = {own: self._rows[own] for own in self._contexts}
        return power

    def seconds(self, row: int, n: int) -> float:
        return self._rows[row][n - 1]

    def multiply(self, row: int, n: int, factor: float) -> None:
        self._rows[row][n - 1] *= factor


def _filled(row: Sequence[float], widest: int) -> list[float]:
    slope = max(0.0, (row[-1] - row[0]) / max(1, len(row) - 1))
    return [*row, *(row[-1] + slope * i for i in range(1, widest - len(row) + 1))]
