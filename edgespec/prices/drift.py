"""When many passes in a row cost what they should not: a drift of the machine, and not noise.

Another program on one core makes OpenMP's threads wait for each other, and passes 2 to 100 times dearer, not all
widths alike; heat does it slowly. A hiccup is one pass. So single surprises are held back until the passes after
them show which it was, and medians decide, never means.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import NamedTuple

_LEAST = 0.12  # log of the smallest drift that is told from noise
_SPREADS = 1.2  # or this many times the mean surprise, where passes vary more
_WINDOW = 6  # passes that must agree on a drift
_HICCUP = 0.5  # log; more than a pass varies by without a reason
_CLIP = 0.4  # log; how much one pass counts for how much passes vary
_FEW = 3  # passes that outweigh what was thought before
_STRONG = 2.0  # times the threshold: a drift that fewer passes prove
_RELEARN = 5  # passes of a width after which it is known again


class Pass(NamedTuple):
    """A pass seen: the row and width it belongs to, the log of what it took over its price, and its round."""

    row: int
    n: int
    surprise: float
    round: int


class Relearning:
    """A price that must be found anew: the lower median of the passes since, and of what it was while they are few.

    A cheaper pass is thus believed at once, for no hiccup makes a pass cheap; a dearer one when a second confirms it.
    """

    def __init__(self, enough: int) -> None:
        self._enough = enough
        self._said: list[float] = []
        self._moved = 0.0

    @property
    def done(self) -> bool:
        return len(self._said) >= self._enough

    @property
    def certain(self) -> bool:
        """Whether passes have said more than what it was before."""
        return len(self._said) > 1

    def hear(self, surprise: float) -> float:
        """The log of how much the price moves by a pass."""
        self._said.append(self._moved + surprise)
        before = [0.0] if len(self._said) < _FEW else []
        middle = statistics.median_low([*before, *self._said])
        step, self._moved = middle - self._moved, middle
        return step


class Drift:
    """How much dearer passes of one kind are than their base, as a log, and the latest passes, still held back.

    Args:
        quick: passes that prove a strong drift.
        gain: share of a surprise that a price takes over from one pass.
    """

    def __init__(self, quick: int, gain: float) -> None:
        self.gain = gain
        self.log = 0.0
        self.relearning: Relearning | None = None
        self.held_back: deque[Pass] = deque()
        self._quick = quick
        self._spread = 0.1

    @property
    def threshold(self) -> float:
        """The log of the smallest surprise that is more than noise."""
        return max(_LEAST, _SPREADS * self._spread)

    def hold_back(self, seen: Pass) -> Pass | None:
        """Take a pass, give back the one that proved to be no drift, if any."""
        self._spread += 0.05 * (min(abs(seen.surprise), _CLIP) - self._spread)
        self.held_back.append(seen)
        return self.held_back.popleft() if len(self.held_back) > _WINDOW else None

    def found(self) -> float | None:
        """The log of a drift that the latest passes agree on."""
        if not self.held_back or abs(self.held_back[-1].surprise) <= self.threshold:
            return None
        for window, threshold in ((self._quick, _STRONG * self.threshold), (_WINDOW, self.threshold)):
            surprises = [seen.surprise for seen in self.held_back][-window:]
            if len(surprises) == window and agree(surprises, threshold):
                return statistics.median(surprises)
        return None

    def release(self, since: int = 0) -> list[Pass]:
        """The passes held back, those from round `since` on; none is any more."""
        seen = [seen for seen in self.held_back if seen.round >= since]
        self.held_back.clear()
        return seen

    def onset(self, by: float) -> list[Pass]:
        """The passes that show the drift `by`, back to the first of them; none is held back any more."""
        shown = list(takewhile(lambda seen: seen.surprise / by > 0.5, reversed(self.held_back)))
        self.held_back.clear()
        return shown[::-1]

    def hear(self, surprise: float) -> None:
        """A pass while relearning."""
        if self.relearning is not None:
            self.log += self.relearning.hear(surprise)
            if self.relearning.done:
                self.relearning = None


@dataclass
class Cell:
    """What passes of one width, at about one cache length, taught."""

    #: The drift after which this began.
    epoch: int
    relearning: Relearning | None = None
    seen: int = 0
    #: The log of all slow corrections.
    moved: float = 0.0
    late: deque[float] = field(default_factory=lambda: deque(maxlen=4))

    def renew(self, epoch: int) -> None:
        """After a drift the shape may be another."""
        self.epoch, self.relearning, self.moved = epoch, Relearning(_RELEARN), 0.0
        self.late.clear()


def agree(surprises: Sequence[float], threshold: float) -> bool:
    """Whether all are beyond the threshold, to the same side; one hiccup among cheaper passes is overlooked."""
    *others, dearest = sorted(surprises)
    if dearest < _HICCUP:
        others.append(dearest)
    return min(surprises) > threshold or max(others) < -threshold


def least(surprises: Sequence[float]) -> float:
    """The one that claims least."""
    return min(surprises, key=abs)


def clipped(surprise: float) -> float:
    return math.copysign(min(abs(surprise), _CLIP), surprise)
