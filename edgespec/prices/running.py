"""Seconds of what is paid for again and again."""

from __future__ import annotations

import statistics
from collections import deque

_LATEST = 5  # times: two hiccups among them do not count, and a new price is taken over after three


class RunningPrice:
    """The lower median of the latest times, in which a hiccup does not count.

    Args:
        seconds: a price measured before, which counts as one time; None where nothing is known, which costs nothing.
    """

    __slots__ = ("_latest", "seconds")

    def __init__(self, seconds: float | None = None) -> None:
        self.seconds = seconds or 0.0
        self._latest = deque(() if seconds is None else (seconds,), maxlen=_LATEST)

    def observe(self, seconds: float) -> None:
        """It took so many seconds once more."""
        self._latest.append(seconds)
        self.seconds = statistics.median_low(self._latest)
