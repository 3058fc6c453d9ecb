"""A draft model that reads what was committed since it was asked last: what that costs, and what the controller gains.

    python -m benchmarks.simulator.reading

`turns` are answers of `chat`, of at most 43 tokens, and of `copy` in turn; those of `turns-0.8` are sampled. A model
reads all of them that it did not see; with `own prompts` no answer begins with a text that was there before, as where a
server has many clients. The second table has answers of ten or thirty joined ones, each after a long prompt of its own.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

import click
import numpy as np

from edgespec.controller.adaptive import Adaptive
from edgespec.drafters import Drafter

from ..report import table
from .measured import flat
from .trace import Item, Trace
from .world import CURVES, Curve, World

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


def joined(trace: Trace, answers: int, prompt: int) -> Trace:
    """Answers of `answers` of the trace one after the other, each after `prompt` tokens that no other begins with."""
    items = trace.items
    groups = [items[start : start + answers] for start in range(0, len(items) - answers + 1, answers)]
    return Trace(trace.name, [_joined(group, (number,) * prompt) for number, group in enumerate(groups)])


def _joined(items: list[Item], prompt: tuple[int, ...]) -> Item:
    return Item(
        prompt,
        tuple(itertools.chain.from_iterable(item.answer for item in items)),
        np.concatenate([item.guesses for item in items]),
        np.concatenate([item.probs for item in items]),
    )


def short_rows() -> Iterator[tuple[str, ...]]:
    """The speedup over plain decoding for each text, curve and price of reading."""
    texts = [Trace.load("chat"), Trace.load("hard"), turns(), turns("-0.8")]
    for trace, curve in itertools.product(texts, (CURVES[0], CURVES[1], flat()[0])):
        found = [_speedup(trace, _world(trace, curve, 0.0), model=False)]
        for reading, each in itertools.product(_READING, (trace, strangers(trace))):
            found.append(_speedup(each, _world(each, curve, reading), model=True))
        yield trace.name, curve.name, *(f"{value:.3f}" for value in found)


def long_rows() -> Iterator[tuple[str, ...]]:
    """The same for long answers after long prompts, where a token takes 0.3 of a guess to read."""
    lengths = ((10, 1500), (30, 1500), (30, 4000))
    for name, (answers, prompt), curve in itertools.product(("chat", "hard"), lengths, (CURVES[0], flat()[0])):
        trace = joined(Trace.load(name), answers, prompt)
        found = [_speedup(trace, _world(trace, curve, _READING[0]), model=model) for model in (False, True)]
        tokens = trace.tokens // len(trace.items)
        yield f"{name}, {tokens} tokens after {prompt}", curve.name, *(f"{value:.3f}" for value in found)


def _world(trace: Trace, curve: Curve, reading: float) -> World:
    return World(trace, replace(curve, step=_STEP), reading=reading)


def _speedup(trace: Trace, world: World, *, model: bool) -> float:
    drafters: list[Drafter] = [world.look_up, world.model] if model else [world.look_up]
    return trace.tokens / world.run(Adaptive(drafters, world.prices, clock=world.clock)).seconds


@click.command()
def main() -> None:
    """Print the tables."""
    heads = [f"{kind}reads at {reading}" for reading in _READING for kind in ("", "own prompts, ")]
    click.echo(table(["text", "prices", "look-ups alone", *heads], short_rows()))
    click.echo(table(["text", "prices", "look-ups alone", f"reads at {_READING[0]}"], long_rows()))


if __name__ == "__main__":
    main()
