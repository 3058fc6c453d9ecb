"""Drafts bought to learn what their passes cost.

A wide pass that was measured too dear is never bought, so nothing corrects its price. Now and then a draft is therefore
chosen as if wide passes cost a third of what they are believed to cost beyond a plain one. Every price that proves
right doubles the wait for the next; what such drafts lose is paid from the budget, as all losses are.
"""

from __future__ import annotations

from collections.abc import Sequence

_CHEAPER = 1 / 3  # of its excess over a plain one, what a wide pass may cost in truth
_CONFIRMED = 0.85  # of its price, what a pass takes at least where the price is right
_WAIT = (16, 4096)  # rounds between two of these drafts: at first, and at most


class Explorer:
    """Says when a draft is chosen at doubted prices, and at which."""

    def __init__(self) -> None:
        self._wait = _WAIT[0]
        self._rounds = 0  # since the last one

    @property
    def due(self) -> bool:
        """Whether the next draft is to be chosen at doubted prices."""
        return self._rounds >= self._wait

    @staticmethod
    def doubted(curve: Sequence[float]) -> list[float]:
        """Seconds by width as they might be, of those believed. No pass takes longer than as many plain steps do."""
        plain = curve[0]
        return [plain + _CHEAPER * (min(seconds, n * plain) - plain) for n, seconds in enumerate(curve, 1)]

    def observe(self) -> None:
        """A round is over."""
        self._rounds += 1

    def explored(self, pace: float | None) -> None:
        """A draft was chosen at doubted prices; `pace` is the seconds of its pass over the price believed, None where
        nothing was drafted."""
        self._rounds = 0
        if pace is not None:
            self._wait = _WAIT[0] if pace < _CONFIRMED else min(2 * self._wait, _WAIT[1])
