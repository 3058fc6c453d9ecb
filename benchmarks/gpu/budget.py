"""The time that a call may take."""

from __future__ import annotations

import time
from dataclasses import dataclass


@dataclass(frozen=True)
class Budget:
    """Time up to `until`, in seconds of time.monotonic()."""

    until: float

    @classmethod
    def of_minutes(cls, minutes: float) -> Budget:
        """The time from now on."""
        return cls(time.monotonic() + 60 * minutes)

    @property
    def left(self) -> float:
        """Seconds that are left."""
        return max(0.0, self.until - time.monotonic())
