"""Seconds of what is paid for again and again."""

from __future__ import annotations

_GAIN = 0.1  # share of a surprise that is taken over
_HICCUP = 1.5  # times the price, for which what something took counts at most


class RunningPrice:
    """A moving average of seconds, in which a hiccup counts little. What is not yet known costs nothing."""

    __slots__ = ("seconds",)

    def __init__(self, seconds: float = 0.0) -> None:
        self.seconds = seconds

    def observe(self, seconds: float) -> None:
        """It took so many seconds once more."""
        if self.seconds:
            self.seconds += _GAIN * (min(seconds, _HICCUP * self.seconds) - self.seconds)
        else:
            self.seconds = seconds
