"""Never slower than plain decoding: the time that speculation may lose, in one account.

Every round is compared with plain decoding: what it took, in plain steps, less the tokens it brought. Losses are paid
from a credit that a small share of the time refills and gains restore. Speculation is allowed while there is credit, so
all it loses, drafts that failed, drafters that were asked in vain, probes and exploring, is at most that share of the
time and the credit. Drafters with a price may lose a part of it: free ones must not be paused for what others lose.
"""

from __future__ import annotations

_SHARE = 0.01  # of the time, that may be lost
_CREDIT = 48.0  # plain steps that may be lost at once, after gains
_BEGINNING = 4.0  # and before any, for each drafter with a price: an answer may be short
# And of what the last run had left, before any gains of this one: of 60 chats of one answer in runs of their own 9 lost
# with 0, and none with 16 (docs/controller.md).
_CARRIED = 16.0
# Of both, what rounds in which a drafter with a price is asked may lose. With 1, three of them paused look-ups that had
# 1.14 times the speed of plain decoding on a mix of texts (1.07B, llama.cpp's q8_0). Other parts were not measured.
_PRICED = 0.75
#: Of a plain step, what a round of a pause is charged at most: half of what refills the credit, so that pauses end.
PAUSED = _SHARE / 2
# Rounds over which most of a reading is paid. Over 16, that of 4,000 tokens paused all drafters (docs/controller.md).
_INSTALMENTS = 64


class Instalments:
    """What drafters read is paid over the rounds that it is for.

    Paid at once, the reading of a long prompt would end all speculation, and with it the guesses it was made for.
    """

    def __init__(self) -> None:
        self._due = 0.0

    def pay(self, steps: float) -> float:
        """Add what reading took in this round, in plain steps, and return what is paid in this round."""
        self._due += steps
        paid = self._due / _INSTALMENTS
        self._due -= paid
        return paid


class Budget:
    """What speculation may still lose, in plain steps.

    Args:
        drafters: with a price. Each reads the prompt before its first guess, which is a loss like any other; with the
            credit for one, several would end all speculation in the first rounds.
        part: of all that may be lost.
        gained: plain steps that the last controller with this calibration had left.
    """

    def __init__(self, drafters: int = 1, part: float = 1.0, gained: float = 0.0) -> None:
        self._credit = part * max(_BEGINNING * max(1, drafters), min(_CARRIED, gained))
        self._share = part * _SHARE

    @classmethod
    def of_priced(cls, drafters: int, gained: float) -> Budget:
        """What the rounds in which drafters with a price are asked may lose."""
        return cls(drafters, _PRICED, gained)

    @property
    def left(self) -> float:
        """Plain steps that may still be lost; below 0 after a loss that exceeded them."""
        return self._credit

    @property
    def is_left(self) -> bool:
        """Whether the next round may speculate."""
        return self._credit > 0

    def observe(self, tokens: int, steps: float) -> None:
        """A round brought `tokens` and took as long as so many plain steps."""
        self._credit = min(_CREDIT, self._credit + tokens - steps + self._share * steps)

    def restate(self, steps: float) -> None:
        """Rounds were charged so many plain steps too much, see `Charges`."""
        self._credit = min(_CREDIT, self._credit + steps)
