"""A drafter whose guesses take time: what asking it costs and brings, and when it is probed."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..drafters import Drafter
from ..prices import RunningPrice
from ..types import Guess
from ..verify import RoundContext
from .calibration import Ahead
from .draft_tree import Trial

_PROBING = 0.03  # share of the time that may go into probing one drafter that is not worth asking
_LATELY = 0.93  # of what asking brought, each time
_DOUBT = 3.0  # times asked for nothing that a drafter not yet known begins with
_PATIENCE = (4, 64)  # rounds between probes that miss: at first, and at most


class PricedDrafter:
    """A drafter with a price, and its record.

    `ahead` is what is expected of its guesses. The first guess of a round is dearer than those after it: the drafter
    reads what was committed since it was asked last, and finds the caches full of the target's weights.
    """

    def __init__(self, drafter: Drafter, ahead: Ahead, clock: Callable[[], float]) -> None:
        self.drafter = drafter
        self.ahead = ahead
        #: Seconds of the first guess of a round, and of one after it.
        self.first, self.later = RunningPrice(drafter.step_price), RunningPrice(drafter.step_price)
        #: Guesses of this round, and the seconds they took.
        self.guesses = 0
        self.seconds = 0.0
        self._clock = clock
        self._left_alone = 0
        self._patience = 1
        self._brought = 0.0
        self._times = _DOUBT

    @property
    def name(self) -> str:
        return self.drafter.name

    @property
    def worth(self) -> float:
        """What asking brought of late, in tokens beyond what was in hand and less what it took.

        More than averages promise, where the drafter knows when it is right: doubtful drafts are declined in time.
        """
        return self._brought / self._times

    def due(self, plain: float) -> bool:
        """Whether it is time for a probe; probes take a small share of the time at the most."""
        return self._left_alone >= max(self._patience, self.first.seconds / (_PROBING * plain))

    def begin(self, round_context: RoundContext) -> None:
        """Begin a round in which it is asked."""
        started = self._clock()
        self.drafter.begin(round_context)
        self.guesses, self.seconds = 0, self._clock() - started

    def guess(self, path: Sequence[int], most: int) -> Sequence[Guess]:
        """What follows `path`, see `Drafter.guess`; the time it takes is its price from now on."""
        started = self._clock()
        guesses = self.drafter.guess(path, most)
        took = self._clock() - started
        if self.guesses:
            self.later.observe(took)
        else:
            self.first.observe(self.seconds + took)
        self.guesses += 1
        self.seconds += took
        return guesses

    def asked(self, brought: float) -> None:
        """It was asked in this round, which brought so many tokens more than it took."""
        self._brought = _LATELY * self._brought + brought
        self._times = _LATELY * self._times + 1
        self._left_alone = -1

    def observe(self, trials: Sequence[Trial]) -> None:
        """A round is over; `trials` are its likeliest guesses, as far as they were tried."""
        self._left_alone += 1
        for trial in trials:
            (self.ahead.later if trial.depth else self.ahead.first).add(trial.hit)
        if trials:
            self._patience = 1 if trials[0].hit else min(max(2 * self._patience, _PATIENCE[0]), _PATIENCE[1])
