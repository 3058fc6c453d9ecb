"""Wide passes that take longer in rounds than when they were measured: `python -m benchmarks.simulator.mismeasured`.

On two cores of a Xeon passes over 9, 12 and 16 tokens took 2.1 to 2.5 plain steps when a model was loaded and 3.0 to
3.6 in rounds, those over 2 to 4 the same in both (llama.cpp's q4_0, 395 million parameters). Here 6 of 100 passes are
hiccups. Given is the speedup over plain decoding of some orders of a text: with prices as they are in rounds, as they
were measured, and so where hiccups of narrow passes are not forgotten (`Pace.forget_narrower`).
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import product
from typing import Any
from unittest.mock import patch

import click

from edgespec.controller.adaptive import Adaptive
from edgespec.drafters import Drafter
from edgespec.prices import Prices, pace

from ..report import table
from .shadow import ordered
from .trace import Trace
from .world import Curve, Deciding, World

TEXTS = ("kinds", "copy", "mix", "chat")
_ORDERS, _TOKENS = 6, 1400
_VARIES = 0.05  # log; of each pass
_HICCUPS, _LONGER = 0.06, (1.15, 1.75)  # their share, and how many times as long they take
_DECIDING = Deciding(0.02, 0.002)
_READING = 0.15  # of a token that is read, in guesses
#: llama.cpp's q4_0 of a target of 395 million parameters, in rounds and as measured when it was loaded.
IN_ROUNDS = Curve(
    "in rounds",
    tuple(range(1, 17)),
    (1, 1.77, 2.2, 1.4, 2.0, 2.6, 2.7, 2.4, 2.95, 3.0, 3.2, 3.4, 3.5, 3.5, 3.6, 3.6),
    step=0.09,
)
_AT_LOAD = (1, 1.77, 2.2, 1.38, 2.0, 2.5, 2.6, 2.1, 2.16, 2.4, 2.6, 2.2, 3.4, 3.2, 3.0, 2.5)


@dataclass
class Hiccups:
    """Passes vary, and some take much longer."""

    seed: int

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)  # noqa: S311 - always the same

    def factor(self, _now: float, _width: int) -> float:
        longer = self._random.uniform(*_LONGER) if self._random.random() < _HICCUPS else 1.0
        return longer * self._random.lognormvariate(0.0, _VARIES)


_Variant = tuple[tuple[float, ...], Callable[[], AbstractContextManager[Any]]]
VARIANTS: Mapping[str, _Variant] = {
    "right prices": (IN_ROUNDS.prices, nullcontext),
    "as measured": (_AT_LOAD, nullcontext),
    "as measured, hiccups remembered": (
        _AT_LOAD,
        lambda: patch.object(pace.Pace, "forget_narrower", lambda _self: None),
    ),
}


def speed(trace: Trace, prices: tuple[float, ...], seed: int, *, model: bool) -> float:
    """Speedup by the clock of a run that begins with these prices."""
    world = World(trace, IN_ROUNDS, Hiccups(seed), _DECIDING, reading=_READING)
    world.prices = Prices(prices)
    drafters: list[Drafter] = [world.look_up, *([world.model] if model else [])]
    outcome = world.run(Adaptive(drafters, world.prices, clock=world.clock))
    return outcome.tokens / outcome.seconds


@click.command()
def main() -> None:
    """Print the table."""
    rows = []
    for text, (variant, (prices, changed)) in product(TEXTS, VARIANTS.items()):
        cells = []
        for model in (False, True):
            with changed():
                found = [
                    speed(ordered(Trace.load(text), order, _TOKENS), prices, order, model=model)
                    for order in range(_ORDERS)
                ]
            cells.append(f"{statistics.geometric_mean(found):.3f}")
        rows.append((text, variant, *cells))
    click.echo(table(("text", "prices", "look-ups", "and the draft model"), rows))


if __name__ == "__main__":
    main()
