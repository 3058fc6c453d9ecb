"""The machine: its cores, and the load by other programs."""

from __future__ import annotations

import os
import time

import psutil

_BUSY = ("user", "nice", "system", "irq", "softirq")  # fields of psutil.cpu_times that are time of programs, if present
_QUIET = 0.1  # share of all cores that other programs may use while passes are measured


def physical_cores() -> int:
    """Physical cores that this process may use."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(allowed, psutil.cpu_count(logical=False) or allowed))


class OtherPrograms:
    """A context manager that measures the share of all cores that other programs use; afterwards it is in `share`."""

    share = 0.0

    def __enter__(self) -> OtherPrograms:
        self._before = _seconds()
        return self

    def __exit__(self, *_error: object) -> None:
        others, own, wall = (after - before for before, after in zip(self._before, _seconds(), strict=True))
        self.share = max(0.0, others - own) / (max(wall, 1e-9) * (psutil.cpu_count() or 1))

    @property
    def busy(self) -> bool:
        """Whether other programs used enough to slow down passes."""
        return self.share > _QUIET


def _seconds() -> tuple[float, float, float]:
    """Processor seconds of all programs and of this one, and the wall-clock time."""
    everything, own = psutil.cpu_times(), psutil.Process().cpu_times()
    return sum(getattr(everything, name, 0.0) for name in _BUSY), own.user + own.system, time.perf_counter()
