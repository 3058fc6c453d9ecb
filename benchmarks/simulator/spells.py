"""Short first answers on a machine that is slow for a while: `python -m benchmarks.simulator.spells`.

Answers of 72 tokens, each in a run of its own without calibration, as a user's first one is. For a while plain steps
and wider passes take some times what was measured at load. Given is the speedup over plain decoding, were all passes at
the measured prices, and how many of the answers that gain at least a tenth on a calm machine lose in the spell: with
rounds compared again, without, and with a pace that begins with whatever pass came first of those that proved it.
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from itertools import product
from typing import Any
from unittest.mock import patch

import click

from edgespec.controller.adaptive import Adaptive
from edgespec.controller.recent_rounds import Compared
from edgespec.prices import pace

from ..report import table
from .shadow import STEEP
from .trace import Item, Trace
from .world import Curve, Deciding, World

TEXTS = ("copy", "mix", "chat")
_ANSWERS, _LEAST, _TOKENS = 24, 40, 72  # of each text, of at least so many tokens, cut to so many
_SEEDS = 2
_VARIES = 0.06  # log; of each pass
_GAINS = 1.1  # on a calm machine, of answers of which the lost ones are counted
_DECIDING = Deciding(0.03, 0.003)
_READING = 0.2  # of a token that is read, in guesses
#: Two of small models, not measured, and a steep one.
CURVES = (
    Curve("a small model", (1, 2, 3, 4, 5, 6, 8, 12, 16), (1, 1.6, 2.0, 2.2, 2.6, 2.8, 3.2, 3.9, 4.6), step=0.12),
    Curve("another", (1, 2, 3, 4, 5, 6, 8, 12, 16), (1, 1.4, 1.6, 1.8, 2.0, 2.2, 2.5, 2.9, 3.3), step=0.12),
    STEEP,
)


@dataclass
class Spell:
    """While it lasts passes take some times their prices.

    Args:
        until: plain steps' time at which it ends.
        plain: what plain steps take in it, over their price.
        wide: the same of wider passes.
        every: plain steps' time after which it comes again.
        seed: of what passes vary by.
    """

    until: float
    plain: float
    wide: float
    every: float = math.inf
    seed: int = 0

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)  # noqa: S311 - always the same

    def factor(self, now: float, width: int) -> float:
        slow = now % self.every < self.until
        return (self.plain if width == 1 else self.wide) ** slow * self._random.lognormvariate(0.0, _VARIES)


SPELLS: Mapping[str, Spell] = {
    "none": Spell(0, 1.0, 1.0),
    "20 steps, 1.6, wide ones 2.0": Spell(20, 1.6, 2.0),
    "30 steps, 1.6, wide ones 2.4": Spell(30, 1.6, 2.4),
    "40 steps, 2.0": Spell(40, 2.0, 2.0),
    "to the end, 1.5, wide ones 2.0": Spell(math.inf, 1.5, 2.0),
    "25 of every 50 steps, 1.6": Spell(25, 1.6, 1.6, 50),
}


def _from_any_pass(self: pace.Pace, log: float) -> float:
    by = _change(self, log)
    self.since = self._latest[0].round
    return by


_change = pace.Pace._change
VARIANTS: Mapping[str, Callable[[], AbstractContextManager[Any]]] = {
    "compared again": nullcontext,
    "compared once": lambda: patch.object(Compared, "gained", lambda *_given: 0.0),
    "a pace begins with any pass": lambda: patch.object(pace.Pace, "_change", _from_any_pass),
}


def answers() -> Iterator[Item]:
    """The first ones of each text that are long enough."""
    for text in TEXTS:
        long = [item for item in Trace.load(text).items if len(item.answer) >= _LEAST]
        yield from (item.first(_TOKENS) for item in long[:_ANSWERS])


def speeds(items: Sequence[Item], spell: str) -> list[float]:
    """Speedups of all answers at all prices."""
    found = []
    for curve, (number, item), again in product(CURVES, enumerate(items), range(_SEEDS)):
        noise = replace(SPELLS[spell], seed=_SEEDS * number + again)
        world = World(Trace("answer", [item]), curve, noise, _DECIDING, reading=_READING)
        controller = Adaptive([world.look_up, world.model], world.prices, clock=world.clock)
        found.append(world.run(controller).speedup(curve))
    return found


@click.command()
def main() -> None:
    """Print the table."""
    items, rows = list(answers()), []
    calm = speeds(items, "none")
    for spell, variant in product(SPELLS, VARIANTS):
        with VARIANTS[variant]():
            found = speeds(items, spell)
        gaining = [speed for speed, before in zip(found, calm, strict=True) if before >= _GAINS]
        lost = sum(speed < 1 for speed in gaining)
        mean = statistics.geometric_mean(found)
        rows.append((spell, variant, f"{mean:.3f}", f"{min(found):.2f}", f"{lost} of {len(gaining)}"))
    click.echo(table(("spell", "variant", "mean", "worst", "lost"), rows))


if __name__ == "__main__":
    main()
