"""Never slower than plain decoding: the time that speculation may lose.

Every round is compared with plain decoding: what it took, in plain steps, less the tokens it brought. Losses are paid
from a credit that a small share of the time refills and gains restore. Speculation is allowed while there is credit, so
all it loses, drafts that failed, drafters that were asked in vain, probes and exploring, is at most that share of the
time and the credit. Drafters with a price may lose a part of it: free ones must not be paused for what others lose.
What they lost by chance is restored if they show, without being verified, that they pay (`Shadow`).
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
    """What speculation may still lose, in plain steps: all of it, and the drafters with a price, which may lose a part.

    What they lose beyond their part, as with a reading that took longer than expected, they owe alone: free drafters go
    on, and the share of the time pays it off before these drafters are asked again.

    Args:
        priced: drafters with a price. Each reads the prompt before its first guess, which is a loss like any other;
            with the credit for one, several would end all speculation in the first rounds.
        gained: plain steps that the last controller with this calibration had left.
    """

    def __init__(self, priced: int = 0, gained: float = 0.0) -> None:
        self._left = max(_BEGINNING * max(1, priced), min(_CARRIED, gained))
        self._priced = _PRICED * self._left

    @property
    def left(self) -> float:
        """Plain steps that may still be lost; 0 or less in a pause."""
        return self._left

    @property
    def is_left(self) -> bool:
        """Whether the next round may speculate."""
        return self._left > 0

    @property
    def is_left_for_priced(self) -> bool:
        """Whether drafters with a price may be asked in it."""
        return self._priced > 0

    @property
    def pause_charge(self) -> float:
        """Plain steps that a round of a pause is charged at most: half of what refills the credit, so that it ends."""
        return self._refill(1.0)[0] / 2

    def restore(self) -> None:
        """Drafters with a price have shown that they pay (`Shadow`): they may lose as much as one may at first."""
        self._left = max(self._left, _BEGINNING)
        self._priced = max(self._priced, _PRICED * _BEGINNING)

    def observe(self, tokens: int, steps: float, reading: float = 0.0, *, asked: bool = False) -> None:
        """A round brought `tokens` and took as long as so many plain steps.

        Args:
            reading: plain steps that are paid in this round for what drafters with a price read, beside `steps`.
            asked: whether drafters with a price were asked.
        """
        refill, share = self._refill(steps + reading)
        gain = tokens - steps
        priced = gain - reading if asked else -reading
        borne = max(priced, -max(0.0, self._priced))
        self._left = min(_CREDIT, self._left + borne + (0.0 if asked else gain) + refill)
        self._priced = min(_PRICED * _CREDIT, self._priced + priced + share)

    def correct(self, free: float, asked: float) -> None:
        """Rounds took so many plain steps less than was observed, or more where it is below 0; see `RecentRounds`.

        Args:
            free: rounds in which no drafter with a price was asked.
            asked: the others. What was not borne of their loss beyond the part of these drafters is not given back.
        """
        borne = max(0.0, self._priced + asked) - max(0.0, self._priced)
        self._left = min(_CREDIT, self._left + free + borne)
        self._priced = min(_PRICED * _CREDIT, self._priced + asked)

    def _refill(self, steps: float) -> tuple[float, float]:
        """What so many plain steps refill: of all that may be lost, and of the part of drafters with a price."""
        whole, share = _SHARE * steps, _PRICED * _SHARE * steps
        if self.is_left_for_priced:
            return whole, share
        # What they owe is no part of what is left. In a pause the parts change places, so that it ends soon: a half, a
        # quarter and nothing for what is owed were measured (docs/controller.md).
        return (whole - share, share) if self.is_left else (share, whole - share)
