"""Never slower than plain decoding: the time that speculation may lose, in one account.

Every round is compared with plain decoding: what it took, in plain steps, less the tokens it brought. Losses are paid
from a credit that a small share of the time refills and gains restore. Speculation is allowed while there is credit, so
all it loses, drafts that failed, drafters that were asked in vain, probes and exploring, is at most that share of the
time and the credit.
"""

from __future__ import annotations

_SHARE = 0.01  # of the time, that may be lost
_CREDIT = 48.0  # plain steps that may be lost at once, after gains
_BEGINNING = 4.0  # and before any: an answer may be short


class Budget:
    """What speculation may still lose, in plain steps."""

    def __init__(self) -> None:
        self._credit = _BEGINNING

    @property
    def is_left(self) -> bool:
        """Whether the next round may speculate."""
        return self._credit > 0

    def observe(self, tokens: int, steps: float) -> None:
        """A round brought `tokens` and took as long as so many plain steps."""
        self._credit = min(_CREDIT, self._credit + tokens - steps + _SHARE * steps)
