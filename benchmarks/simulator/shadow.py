"""Shadow drafts at steep prices: `python -m benchmarks.simulator.shadow`.

Dialogues in several orders of the conversations, 5,000 tokens each, and texts that nobody guesses, without calibration.
Passes cost what they do at 395M in llama.cpp's q8_0 on two cores of an AMD EPYC without AMX, where no draft of one
token can pay: with shadow drafts, with twice the time for them, with probes and shadow drafts no longer than other
drafts, and without shadow drafts. In *chat-layers* the draft is that of the target's layers, which is right at 86% of
the places; in *chat* it is right at 80%.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import product
from unittest.mock import patch

import click

from edgespec.backends import common_prefix
from edgespec.controller import adaptive, shadow
from edgespec.controller.adaptive import Adaptive
from edgespec.drafters import Drafter

from ..report import table
from .noise import SILENCE
from .several import Other
from .trace import Item, Trace
from .world import Curve, Deciding, World

STEEP = Curve(
    "395M q8_0, EPYC",
    tuple(range(1, 17)),
    (1, 2.39, 2.93, 3.39, 4.37, 4.83, 5.20, 3.72, 4.4, 5.03, 5.0, 4.74, 5.0, 5.4, 5.2, 4.91),
    step=0.031,
)
TEXTS = ("chat-layers", "chat", "hard")
DRAFTERS = (("model",), ("lookup", "model"), ("lookup", "model", "poor", "bad"))
_TOKENS = 5000
_ORDERS = 16
_DECIDING = Deciding(0.01, 0.001)
_READING = 0.45  # of a token that is read, in guesses


@contextmanager
def _probing_as_drafting() -> Iterator[None]:
    with patch.object(adaptive, "PROBE_ERRORS", 1.0), patch.object(shadow, "PROBE_ERRORS", 1.0):
        yield


VARIANTS: Mapping[str, Callable[[], AbstractContextManager[object]]] = {
    "shadow drafts": nullcontext,
    "for 1% of the time": lambda: patch.object(shadow, "_SHARE", 0.01),
    "probes no longer than other drafts": _probing_as_drafting,
    "none": lambda: patch.object(shadow.Shadow, "is_due", lambda *_given: False),
}


def conversations(items: Sequence[Item]) -> list[list[Item]]:
    """The items that go on from one another."""
    found: list[list[Item]] = []
    for item in items:
        before = found[-1][-1].prompt if found else ()
        if found and common_prefix(item.prompt, before) == len(before):
            found[-1].append(item)
        else:
            found.append([item])
    return found


def ordered(trace: Trace, order: int, tokens: int = _TOKENS) -> Trace:
    """The conversations of a trace in another order, about so many tokens of them; order 0 is as recorded."""
    talks = conversations(trace.items)
    if order:
        random.Random(order).shuffle(talks)  # noqa: S311 - always the same
    part = Trace(trace.name, [])
    for item in (item for talk in talks for item in talk):
        if part.tokens < tokens:
            part.items.append(item)
    return part


def drafters(world: World, names: Sequence[str]) -> list[Drafter]:
    """Drafters of a world by name.

    A *poor* head's guess takes 1.3 times as long as one of the model and is wrong at 45% of the places besides; a *bad*
    one's a tenth, and at 70%.
    """
    known: dict[str, Drafter] = {
        "lookup": world.look_up,
        "model": world.model,
        "poor": Other(world, "poor", price=1.3, wrong=0.45),
        "bad": Other(world, "bad", price=0.1, wrong=0.7),
    }
    return [known[name] for name in names]


def speedup(trace: Trace, names: Sequence[str]) -> float:
    """Over plain decoding, of a controller with the drafters of these names."""
    world = World(trace, STEEP, SILENCE, _DECIDING, reading=_READING)
    outcome = world.run(Adaptive(drafters(world, names), world.prices, clock=world.clock))
    return outcome.tokens / outcome.seconds


def rows() -> Iterator[tuple[str, ...]]:
    """For each text and its drafters the geometric mean of the orders and the worst of them, by variant."""
    for text, names in product(TEXTS, DRAFTERS):
        traces = [ordered(Trace.load(text), order) for order in range(_ORDERS)]
        cells = []
        for variant in VARIANTS.values():
            with variant():
                speeds = [speedup(trace, names) for trace in traces]
            cells.append(f"{statistics.geometric_mean(speeds):.3f} ({min(speeds):.2f})")
        yield text, ", ".join(names), *cells


@click.command()
def main() -> None:
    """Print the table."""
    click.echo(table(["text", "drafters", *VARIANTS], rows()))


if __name__ == "__main__":
    main()
