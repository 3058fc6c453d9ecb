"""What the latest rounds were charged, restated when a plain step turns out to have been dearer at their time.

A change of the machine's pace is believed after several passes, and the plain step is timed after that. The rounds
until then were compared with a plain step that was too cheap: where passes took half as long again as when they were
measured, the first drafts of an answer used up the whole credit, and the rest of it was decoded plainly.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

# Rounds. A change of pace is believed after 4 passes of its kind, and plain steps are rare; other numbers not measured.
_LATEST = 32


@dataclass(slots=True)
class _Charge:
    number: int  # of the round's pass, as `Prices.passes` counts
    seconds: float  # that plain decoding was compared with
    plain: float  # the price of a plain step at that time, in seconds
    priced: bool  # whether drafters with a price were charged, too


class Charges:
    """The latest rounds and what they were charged."""

    def __init__(self) -> None:
        self._latest = deque[_Charge](maxlen=_LATEST)
        #: The pass from which on a plain step had the price with which they were compared last.
        self.since = 0

    def add(self, number: int, seconds: float, plain: float, *, priced: bool) -> None:
        """A round was charged `seconds / plain` plain steps."""
        self._latest.append(_Charge(number, seconds, plain, priced))

    def restated(self, since: int, plain: float) -> tuple[float, float]:
        """Plain steps charged too much, of all rounds and of those in which drafters with a price were asked.

        What was charged too little stays as it is: beside other programs that come and go, more was lost by pauses than
        by drafts (simulated: 2.286 times the speed of plain decoding, and 2.322 as it is).

        Args:
            since: the pass from which on a plain step has taken `plain` seconds.
        """
        if since == self.since:
            return 0.0, 0.0
        self.since = since
        total = priced = 0.0
        for charge in self._latest:
            if charge.number < since or charge.plain >= plain:
                continue
            excess = charge.seconds / charge.plain - charge.seconds / plain
            total += excess
            priced += excess if charge.priced else 0.0
            charge.plain = plain
        return total, priced
