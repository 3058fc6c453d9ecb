"""A drafter whose guesses take time: what asking it costs and brings, and when it is probed."""

from __future__ import annotations

from collections.abc import Sequence

from ..drafters import Drafter
from ..prices import RunningPrice
from .calibration import Ahead
from .draft_tree import Trial

_PROBING = 0.03  # share of the time that may go into probing one drafter that is not worth asking
_LATELY = 0.93  # of what asking brought, each time
_DOUBT = 3.0  # times asked for nothing that a drafter not yet known begins with
_PATIENCE = (4, 64)  # rounds between probes that miss: at first, and at most


class PricedDrafter:
    """The record of a drafter with a price.

    `ahead` is what is expected of its guesses.
    """

    def __init__(self, drafter: Drafter, ahead: Ahead) -> None:
        self.drafter = drafter
        self.ahead = ahead
        self._step = RunningPrice(drafter.step_price)
        self._left_alone = 0
        self._patience = 1
        self._brought = 0.0
        self._times = _DOUBT

    @property
    def step(self) -> float:
        """Seconds that one guess takes."""
        return self._step.seconds

    @property
    def worth(self) -> float:
        """What asking brought of late, in tokens beyond what was in hand and less what it took.

        More than averages promise, where the drafter knows when it is right: doubtful drafts are declined in time.
        """
        return self._brought / self._times

    def due(self, plain: float) -> bool:
        """Whether it is time for a probe; probes take a small share of the time at the most."""
        return self._left_alone >= max(self._patience, self.step / (_PROBING * plain))

    def asked(self, steps: int, seconds: float, brought: float) -> None:
        """It was asked for `steps` guesses, which took `seconds` and brought so many tokens more than they took."""
        self._brought = _LATELY * self._brought + brought
        self._times = _LATELY * self._times + 1
        self._left_alone = -1
        self._step.observe(seconds / steps)

    def observe(self, trials: Sequence[Trial]) -> None:
        """A round is over; `trials` are its likeliest guesses, as far as they were tried."""
        self._left_alone += 1
        for trial in trials:
            (self.ahead.later if trial.depth else self.ahead.first).add(trial.hit)
        if trials:
            self._patience = 1 if trials[0].hit else min(max(2 * self._patience, _PATIENCE[0]), _PATIENCE[1])
