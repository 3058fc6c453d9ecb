"""How much dearer passes are now than the table says: the machine's pace.

Another program on one core makes OpenMP's threads wait for each other, and passes 2 to 100 times dearer, not all
widths alike; heat does it slowly. A hiccup is one pass. So several passes in a row must agree on a change, and their
median says how large it is.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

CHANGE = 0.22  # log; what passes must differ by from the present pace to show another; they vary by less
CALM = 0.12  # log; a pace nearer than this to the table is the machine as it was measured
GAIN = 0.05  # share of a smaller surprise that a price takes over from one pass
_CERTAIN = 2  # passes that outweigh what was assumed before them


class _Pass(NamedTuple):
    """A pass: its round, its tokens, and the log of its seconds over the table's."""

    round: int
    width: int
    surprise: float


class Pace:
    """The log of what passes of one kind take over their prices in the table.

    Args:
        passes: in a row that prove a change.
    """

    def __init__(self, passes: int) -> None:
        self.log = 0.0
        #: The round in which the present pace began.
        self.since = 0
        #: Whether the latest pass proved wrong what was assumed.
        self.refuted = False
        #: Tokens of the narrowest pass by which the pace was found. Of narrower ones it says nothing for certain.
        self.narrowest = 1
        self._latest = deque[_Pass](maxlen=passes)
        #: What is assumed since the other kind changed its pace; None where passes have confirmed it.
        self._assumed: float | None = None

    @property
    def sure(self) -> bool:
        """Whether passes have said more than what was assumed."""
        return self._assumed is None

    @property
    def doubted(self) -> bool:
        """Whether the latest pass did not take what the pace says: it may be a hiccup, or the first at another pace."""
        return bool(self._latest) and abs(self._latest[-1].surprise - self.log) > CHANGE

    def observe(self, round_: int, width: int, surprise: float) -> float:
        """Take a pass over `width` tokens, the log of its seconds over the table's; the log of the change of pace that
        it shows, or 0.

        What settles an assumption is no change: it was one when it was assumed.
        """
        self._latest.append(_Pass(round_, width, surprise))
        surprises = [each.surprise for each in self._latest]
        self.refuted = False
        if self._assumed is not None:
            self._settle(surprises)
            return 0.0
        if len(surprises) == self._latest.maxlen and agree([each - self.log for each in surprises], CHANGE):
            return self._change(statistics.median(surprises))
        if self.log and abs(surprise - self.log) <= CHANGE:
            self.log += GAIN * (surprise - self.log)
            self._widen()
        return 0.0

    def assume(self, log: float, since: int) -> None:
        """Take `log` for the pace since the round `since`, until passes seen since then tell otherwise."""
        seen = [each for each in self._latest if each.round >= since]
        self._latest.clear()
        self.log = self._assumed = log
        self.since = since
        self.narrowest = 1
        for each in seen:
            self.observe(*each)

    def shift(self, by: float) -> None:
        """The table became dearer by the log `by`."""
        self.log -= by
        shifted = (each._replace(surprise=each.surprise - by) for each in self._latest)
        self._latest = deque(shifted, maxlen=self._latest.maxlen)

    def forget_narrower(self) -> None:
        """A pass narrower than those that showed the pace took what was expected: dearer ones before it were hiccups.

        Otherwise two hiccups, however far apart, would move the pace to their width.
        """
        kept = (each for each in self._latest if each.width >= self.narrowest)
        self._latest = deque(kept, maxlen=self._latest.maxlen)

    def saw(self, since: int) -> bool:
        """Whether a pass was seen since the round `since`."""
        return bool(self._latest) and self._latest[-1].round >= since

    def _settle(self, surprises: Sequence[float]) -> None:
        """The lower median of what was assumed and the passes since: a cheaper pass is believed at once, for no hiccup
        makes a pass cheap, a dearer one when a second confirms it."""
        assumed = self._assumed or 0.0
        self.log = _calmed(found := statistics.median_low([assumed, *surprises]))
        self.narrowest = 1 if found == assumed else self._seen_narrowest()
        if len(surprises) >= _CERTAIN:
            self._assumed = None
            self.refuted = abs(self.log - assumed) > CHANGE

    def _change(self, log: float) -> float:
        before, self.log = self.log, _calmed(log)
        # A dearer pass that was overlooked may be the last one at the pace before.
        side = math.copysign(1.0, log - before)
        self.since = next(each.round for each in self._latest if side * (each.surprise - before) > CHANGE)
        self.narrowest = self._seen_narrowest()
        return self.log - before

    def _seen_narrowest(self) -> int:
        """On a machine as it was measured that is said of all widths."""
        return min(each.width for each in self._latest) if self.log else 1

    def _widen(self) -> None:
        """Two narrower passes that show the pace, too, are no accident."""
        narrower = [e.width for e in self._latest if e.width < self.narrowest and abs(e.surprise - self.log) <= CHANGE]
        if len(narrower) > 1:
            self.narrowest = max(narrower)


def agree(surprises: Sequence[float], threshold: float) -> bool:
    """Whether all are beyond the threshold, to the same side; one hiccup among cheaper passes is overlooked."""
    *others, _dearest = sorted(surprises)
    return min(surprises) > threshold or max(others) < -threshold


def _calmed(log: float) -> float:
    return 0.0 if abs(log) <= CALM else log
