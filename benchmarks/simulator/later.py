"""What a run gains by what an earlier one has learned: `python -m benchmarks.simulator.later`.

An earlier run answers some of the items of each text, the later one others of one text. Speed of the later run over
plain decoding, the geometric mean of three price curves and of several orders: with nothing kept, with a calibration
that knows nothing of groups of prompts, and with all of it.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import replace
from itertools import product
from unittest.mock import patch

import click

from edgespec.controller.adaptive import Adaptive
from edgespec.controller.calibration import Calibration
from edgespec.controller.prompt_groups import GroupMean, PromptGroups

from ..report import table
from .measured import flat
from .noise import SILENCE
from .shadow import conversations, drafters
from .trace import Item, Trace
from .world import CURVES, Curve, Deciding, World

TEXTS = ("kinds", "mix", "chat-layers", "copy", "hard")
DRAFTERS = (("lookup",), ("model",), ("lookup", "model"), ("lookup", "model", "poor", "bad"))
_EARLIER, _LATER = 300, 600  # tokens of each text
_ORDERS = 4
_DECIDING = Deciding(0.02, 0.002)
_READING = 0.45  # of a token that is read, in guesses
_STEP = 0.05  # of a guess of the model, in plain steps


@contextmanager
def _without_groups() -> Iterator[None]:
    with ExitStack() as patched:
        for kind in (PromptGroups, GroupMean):
            patched.enter_context(patch.object(kind, "kept", lambda _self: []))
        yield


#: What the earlier run leaves; None leaves nothing.
VARIANTS: Mapping[str, Callable[[], AbstractContextManager[object]] | None] = {
    "nothing kept": None,
    "without groups": _without_groups,
    "all of it": nullcontext,
}


def parts(order: int) -> tuple[Trace, dict[str, Trace]]:
    """The items of the earlier run, and by text those of the later one; each order takes others."""
    earlier, later = list[Item](), dict[str, Trace]()
    for text in TEXTS:
        talks = conversations(Trace.load(text).items)
        random.Random(order).shuffle(talks)  # noqa: S311 - always the same
        items = iter(item for talk in talks for item in talk)
        earlier += _taken(items, _EARLIER)
        later[text] = Trace(text, list(_taken(items, _LATER)))
    return Trace("earlier", earlier), later


def _taken(items: Iterator[Item], tokens: int) -> Iterator[Item]:
    while tokens > 0:
        item = next(items)
        tokens -= len(item.answer)
        yield item


def run(trace: Trace, curve: Curve, names: tuple[str, ...], calibration: Calibration) -> float:
    """The speedup over plain decoding of a controller that begins with `calibration` and teaches it."""
    world = World(trace, curve, SILENCE, _DECIDING, reading=_READING)
    controller = Adaptive(drafters(world, names), world.prices, calibration, clock=world.clock)
    return trace.tokens / world.run(controller).seconds


def speeds(names: tuple[str, ...], variant: str) -> dict[str, float]:
    """Of the later run, by text."""
    found: dict[str, list[float]] = {text: [] for text in TEXTS}
    curves = [replace(curve, step=_STEP) for curve in (CURVES[0], CURVES[1], flat()[0])]
    for order, curve in product(range(_ORDERS), curves):
        earlier, later = parts(order)
        keeping, kept = VARIANTS[variant], {}
        if keeping is not None:
            learned = Calibration()
            run(earlier, curve, names, learned)
            with keeping():
                kept = learned.kept()
        for text, trace in later.items():
            found[text].append(run(trace, curve, names, Calibration.of(kept)))
    return {text: statistics.geometric_mean(each) for text, each in found.items()}


@click.command()
def main() -> None:
    """Print the table."""
    rows = []
    for names, variant in product(DRAFTERS, VARIANTS):
        found = speeds(names, variant)
        mean = statistics.geometric_mean(found.values())
        rows.append((", ".join(names), variant, *(f"{speed:.3f}" for speed in found.values()), f"{mean:.3f}"))
    click.echo(table(("drafters", "of the earlier run", *TEXTS, "mean"), rows))


if __name__ == "__main__":
    main()
