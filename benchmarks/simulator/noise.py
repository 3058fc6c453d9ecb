"""How much passes vary on a real machine, recorded once and replayed by the simulator.

    python -m benchmarks.simulator.noise TARGET.gguf [--passes 300]

Passes of 1, 2, 4 and 8 tokens in turn, on the machine left alone and beside two programs that never rest. Kept is each
pass over the median of its width on the quiet machine: hiccups, contention and what it does to wider passes.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import click
import numpy as np
import numpy.typing as npt

from edgespec.backends import Device, Interrupt, Session, open_model

from ..dialogues import FILE
from ..stopwatch import busy

WIDTHS = (1, 2, 4, 8)
RECORDED = Path(__file__).parent / "traces" / "noise.npz"
_HELD = 64  # tokens in the cache
_SPELL = 400.0  # plain steps' time that contention lasts, and then is away
_DRIFT = 0.3  # what a machine that heats up loses
_HEATING = 3000.0  # plain steps' time that it takes

Factors = npt.NDArray[np.float32]


class Noise(Protocol):
    """What a pass takes, over its price."""

    def factor(self, now: float, width: int) -> float:
        """Of a pass over `width` tokens that begins at `now`, in plain steps' time."""
        ...


class Silence:
    """Every pass takes its price."""

    def factor(self, now: float, width: int) -> float:  # noqa: ARG002
        return 1.0


SILENCE = Silence()


@dataclass(frozen=True)
class Recorded:
    """Passes vary as recorded: at random times, but the same for the same time.

    Args:
        quiet: float32 [passes, widths], factors on the quiet machine.
        contended: the same beside other programs.
        spells: whether other programs come and go.
        drift: whether the machine slows down.
    """

    quiet: Factors
    contended: Factors
    spells: bool = False
    drift: bool = False

    @classmethod
    def load(cls, *, spells: bool = False, drift: bool = False) -> Recorded:
        """What was recorded on the machine that docs/simulator.md names."""
        with np.load(RECORDED) as kept:
            return cls(kept["quiet"], kept["contended"], spells, drift)

    def factor(self, now: float, width: int) -> float:
        contended = self.spells and int(now / _SPELL) % 2 == 1
        rows = self.contended if contended else self.quiet
        column = int(np.searchsorted(WIDTHS, width, side="right")) - 1
        row = (int(now) * 2654435761 >> 7) % len(rows)
        slower = 1 + _DRIFT * min(1.0, now / _HEATING) if self.drift else 1.0
        return slower * float(rows[row, column])


def record(session: Session, passes: int) -> Factors:
    """Seconds of passes, float32 [passes, widths]."""
    session.rollback(0)
    session.prefill([1] * _HELD)
    seconds = np.zeros((passes, len(WIDTHS)), dtype=np.float32)
    for i in range(passes):
        for column, width in enumerate(WIDTHS):
            started = time.perf_counter()
            session.decode([1] * width)
            seconds[i, column] = time.perf_counter() - started
            session.rollback(_HELD)
    return seconds


@click.command()
@click.argument("target", type=FILE)
@click.option("--passes", default=300, show_default=True, help="Of each width, quiet and contended each")
def main(target: Path, passes: int) -> None:
    """Record how much passes of TARGET vary."""
    session = open_model(target, Device(context=256, threads=2), Interrupt()).session(256)
    record(session, 10)  # warm up
    quiet = record(session, passes)
    with busy(2):
        contended = record(session, passes)
    medians = np.median(quiet, axis=0)
    np.savez_compressed(RECORDED, quiet=quiet / medians, contended=contended / medians)
    for name, seconds in (("quiet", quiet), ("contended", contended)):
        factors = seconds / medians
        columns = zip(WIDTHS, np.median(factors, axis=0), factors.mean(axis=0), factors.max(axis=0), strict=True)
        click.echo(f"{name}: " + ", ".join(f"t({n}) {m:.2f} mean {a:.2f} most {x:.1f}" for n, m, a, x in columns))


if __name__ == "__main__":
    main()
