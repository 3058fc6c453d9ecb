"""Energy and memory of a run, where the system reports them."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

_POWERCAP = Path("/sys/class/powercap")  # kernel.org: power/powercap/powercap.html


@dataclass(frozen=True, slots=True)
class _Domain:
    """A processor's counter of microjoules, which wraps around at `range`."""

    counter: Path
    range: int

    def read(self) -> int:
        return int(self.counter.read_text())


class Meter:
    """The energy of the processors, which includes that of other programs."""

    def __init__(self, folder: Path = _POWERCAP) -> None:
        self._domains = list(_domains(folder))

    def start(self) -> list[int]:
        """A reading, for `joules`."""
        with contextlib.suppress(OSError, ValueError):
            return [domain.read() for domain in self._domains]
        self._domains = []
        return []

    def joules(self, start: list[int]) -> float | None:
        """The energy since the reading `start`; None where the system does not report it."""
        now = self.start()
        if not now or len(now) != len(start):
            return None
        spent = ((b - a) % domain.range for a, b, domain in zip(start, now, self._domains, strict=True))
        return sum(spent) / 1e6


def _domains(folder: Path) -> Iterator[_Domain]:
    """The readable counters of whole processors; counters of their parts are left out."""
    with contextlib.suppress(OSError):
        for domain in sorted(folder.glob("intel-rapl:*")):
            if domain.name.count(":") > 1:
                continue
            with contextlib.suppress(OSError, ValueError):
                found = _Domain(domain / "energy_uj", int((domain / "max_energy_range_uj").read_text()) + 1)
                found.read()
                yield found


def peak_memory() -> int:
    """The peak memory of this process in bytes, shared pages of files included."""
    if sys.platform == "win32":
        return int(psutil.Process().memory_info().peak_wset)
    import resource  # noqa: PLC0415 - not on Windows

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
