"""Rounds that are decoded plainly without a decision, because the decisions before them asked no drafter.

To decide takes 50 to 90 us. Where a plain step takes 2 to 4 ms, that is all that speculation may lose. Where nothing
pays a decision hardly differs from the one before, unless a free drafter has a likely guess.
"""

from __future__ import annotations

from collections.abc import Sequence

_MOST = 8  # rounds between two decisions


class Skipping:
    """Says which rounds need no decision: one after the first that asked nobody, then 3, 7, and `_MOST` at most."""

    def __init__(self) -> None:
        self._context: Sequence[int] = ()
        self._wait = 0
        self._left = 0.0
        self._least = 0.0

    def is_due(self, context: Sequence[int]) -> bool:
        """Whether the next round may go without a decision.

        Args:
            context: the tokens of the answer's session; another object for another answer, of another kind maybe.
        """
        return self._left >= 1 and context is self._context

    def skips(self, chance: float) -> bool:
        """Whether the next round, which may, goes without a decision.

        Args:
            chance: that the likeliest first guess of the free drafters is right, 0 without one.
        """
        self._left -= 1
        return chance <= self._least

    def decided(self, context: Sequence[int], least: float, until_probe: float, *, idle: bool) -> None:
        """A round was decided.

        Args:
            context: as of `is_due`.
            least: the chance that a first guess must have for any draft to pay.
            until_probe: rounds until a drafter with a price is due for a probe.
            idle: whether nothing was drafted and nobody with a price was asked.
        """
        self._context = context
        self._least = least
        self._wait = min(2 * self._wait + 1, _MOST) if idle else 0
        self._left = min(self._wait, until_probe - 1)
