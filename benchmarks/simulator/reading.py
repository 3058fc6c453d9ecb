"""A draft model that reads what was committed since it was asked last: what that costs, and what adapting makes of it.

    python -m benchmarks.simulator.reading

`turns` are answers of `chat`, of at most 43 tokens, and of `copy` in turn; those of `turns-0.8` are sampled. A model reads
all of them that it did not see; with `own prompts` no answer begins with a text that was there before, as where a server has
many clients.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

import click

from edgespec.controller.adaptive import Adaptive
from edgespec.drafters import Drafter

from ..report import table
from .measured import flat
from .trace import Trace
from .world import CURVES, World

_STEP = 0.03  # of a guess, in plain steps
_READING = (0.3, 1.0)  # of a token that is read, in guesses
_SHORT = 43  # tokens


def turns(temperature: str = "") -> Trace:
    """Short answers of `chat` and whole ones of `copy`, in turn."""
    chat, copy = (Trace.load(name + temperature).items for name in ("chat", "copy"))
    pairs = ((short.first(_SHORT), long) for short, long in zip(chat, copy, strict=False))
    return Trace(f"turns{temperature}", list(itertools.chain.from_iterable(pairs)))


def strangers(trace: Trace) -> Trace:
    """The same answers, of whose prompts no two begin alike."""
    items = [replace(item, prompt=(number, *item.prompt)) for number, item in enumerate(trace.items)]
    return Trace(f"{trace.name}, own prompts", items)


def rows() -> Iterator[tuple[str, ...]]:
    """The speedup over plain decoding for each text, curve and price of reading."""
    texts = [Trace.load("chat"), Trace.load("hard"), turns(), turns("-0.8")]
    for trace, curve in itertools.product(texts, (CURVES[0], CURVES[1], flat()[0])):
        cheap = replace(curve, step=_STEP)
        found = [_speedup(trace, World(trace, cheap), model=False)]
        for reading, each in itertools.product(_READING, (trace, strangers(trace))):
            found.append(_speedup(each, World(each, cheap, reading=reading), model=True))
        yield trace.name, curve.name, *(f"{value:.3f}" for value in found)


def _speedup(trace: Trace, world: World, *, model: bool) -> float:
    drafters: list[Drafter] = [world.look_up, world.model] if model else [world.look_up]
    return trace.tokens / world.run(Adaptive(drafters, world.prices, clock=world.clock)).seconds


@click.command()
def main() -> None:
    """Print the table."""
    heads = [f"{kind}reads at {reading}" for reading in _READING for kind in ("", "own prompts, ")]
    click.echo(table(["text", "prices", "look-ups alone", *heads], rows()))


if __name__ == "__main__":
    main()
