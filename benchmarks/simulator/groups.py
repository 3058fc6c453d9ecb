"""What is learned of answers to prompts that begin alike: `python -m benchmarks.simulator.groups`.

The traces from three places on, 2600 tokens each, without calibration: with groups of prompts, without a part of what
is learned in them, and without any. The speedup over plain decoding, the geometric mean of five price curves.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from itertools import product
from unittest.mock import patch

import click

from edgespec.controller import calibration, time_value
from edgespec.controller.adaptive import Adaptive
from edgespec.controller.prompt_groups import GroupMean
from edgespec.drafters import Drafter

from ..report import table
from .measured import flat
from .noise import SILENCE
from .trace import Item, Trace
from .world import CURVES, Curve, Deciding, World

_TOKENS = 2600
_PLACES = 3
_NEVER = 1e9  # observations, for which the mean of all answers counts
_DECIDING = Deciding(0.02, 0.002)
_READING = 0.15  # of a token that is read, in guesses


def _forgotten(self: time_value.TimeValue, _group: int, _remembered: Collection[int]) -> None:
    """`TimeValue.enter`, of an answer of no group."""
    self._open.clear()


#: What is switched off.
VARIANTS: Mapping[str, Callable[[], AbstractContextManager[object]]] = {
    "groups of prompts": nullcontext,
    "without what asking brought": lambda: patch.object(calibration, "_WORTH_IN_GROUP", _NEVER),
    "without the speed ahead": lambda: patch.object(time_value.TimeValue, "enter", _forgotten),
    "without guesses not yet made": lambda: patch.object(calibration, "_AHEAD_IN_GROUP", _NEVER),
    "without groups": lambda: patch.object(GroupMean, "given", lambda _self, mean: mean),
}


def parts(trace: Trace) -> Iterator[Trace]:
    """The answers from some places on, about `_TOKENS` tokens; after the last one the first one follows."""
    for place in range(_PLACES):
        start = place * len(trace.items) // _PLACES
        part = Trace(trace.name, list[Item]())
        for item in (*trace.items[start:], *trace.items[:start]):
            if part.tokens >= _TOKENS:
                break
            part.items.append(item)
        yield part


def speedup(trace: Trace, curve: Curve, *, with_model: bool) -> float:
    """The speedup of a controller without calibration."""
    world = World(trace, curve, SILENCE, _DECIDING, reading=_READING)
    drafters: list[Drafter] = [world.look_up, *([world.model] if with_model else [])]
    return trace.tokens / world.run(Adaptive(drafters, world.prices, clock=world.clock)).seconds


def mean(name: str, *, with_model: bool) -> float:
    """The geometric mean of all curves and places."""
    curves = (*CURVES[:3], CURVES[4], flat()[0])
    traces = parts(Trace.load(name))
    return statistics.geometric_mean(
        speedup(trace, curve, with_model=with_model) for trace, curve in product(traces, curves)
    )


@click.command()
def main() -> None:
    """Print the table of all traces."""
    rows = []
    for name, with_model in product(("kinds", "mix", "chat", "copy", "hard"), (True, False)):
        speeds = []
        for variant in VARIANTS.values():
            with variant():
                speeds.append(mean(name, with_model=with_model))
        rows.append((name, "with a model" if with_model else "look-ups", *(f"{speed:.3f}" for speed in speeds)))
    click.echo(table(("trace", "drafters", *VARIANTS), rows))


if __name__ == "__main__":
    main()
