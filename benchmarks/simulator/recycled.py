"""What token recycling is worth: traces replayed with the rows that their target computes for each pass.

    python -m benchmarks.simulator.recycled [--trace chat] [--curve openvino]

In a text that the target was made to say, its token is put before the likeliest ones of its row.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from itertools import product
from pathlib import Path

import click
import numpy as np

from edgespec.backends import Device, Interrupt, common_prefix, open_model
from edgespec.controller.adaptive import Adaptive
from edgespec.drafters import Drafter
from edgespec.drafters.lookup import Lookup
from edgespec.drafters.recycling import Recycling
from edgespec.sampling import likeliest
from edgespec.types import Doubles, Draft, Evaluated, Ints, Top

from ..report import table
from .__main__ import TRACES
from .measured import load
from .trace import Item, Trace
from .world import Curve, Outcome, World

_TARGET = Path(__file__).parents[2] / "tests" / "pair" / "target.gguf"  # of the traces
_CONTEXT = 2048
_ROW = 0.0005  # plain steps that keeping a row takes: 16 us of 31 ms

Place = tuple[int, int, tuple[int, ...]]


class Rows:
    """The likeliest tokens after the tokens of passes, computed once for each place."""

    def __init__(self) -> None:
        self._model = open_model(_TARGET, Device(context=_CONTEXT, threads=1), Interrupt())
        self._session = self._model.session(_CONTEXT)
        self._known: dict[Place, tuple[Ints, Doubles]] = {}

    def top(self, item: Item, context: Sequence[int], draft: Draft) -> Top:
        """What is likeliest after `context` and after each node of `draft`."""
        at = len(context) - len(item.prompt)
        paths: list[tuple[int, ...]] = [()]
        for token, parent in zip(draft.tokens, draft.parents, strict=True):
            paths.append((*paths[parent + 1], token))
        said = item.answer[at:]
        places = [
            (id(item), at + len(path), ()) if path == said[: len(path)] else (id(item), at, path) for path in paths
        ]
        if any(place not in self._known for place in places):
            self._compute(context, draft, places)
        tokens, probs = (np.array(column) for column in zip(*(self._known[p] for p in places), strict=True))
        for row, path in zip(tokens, paths, strict=True):
            if path == said[: len(path)] and len(path) < len(said):
                row[:] = _led(row, said[len(path)])
        return Top(tokens, probs)

    def close(self) -> None:
        """Close the model."""
        self._session.close()
        self._model.close()

    def _compute(self, context: Sequence[int], draft: Draft, places: Sequence[Place]) -> None:
        session, held = self._session, len(context) - 1
        session.rollback(min(common_prefix(session.tokens, context), held))
        if len(session.tokens) < held:
            session.prefill(context[len(session.tokens) : held])
        tree = None if draft.is_chain else (-1, *(parent + 1 for parent in draft.parents))
        top = likeliest(session.decode((context[-1], *draft.tokens), tree), Recycling.top)
        session.rollback(held, (0,))
        self._known.update(zip(places, zip(top.tokens, top.probs, strict=True), strict=True))


def _led(row: Ints, token: int) -> Ints:
    """The row with `token` before all others."""
    others: Ints = row[row != token]
    return np.concatenate(([token], others))[: len(row)]


def replayed(trace: Trace, curve: Curve, rows: Rows, *, model: bool, recycling: bool) -> Outcome:
    """The tokens of a trace and the plain steps they take, with look-ups and the drafters named."""
    world = World(trace, curve)
    drafters: list[Drafter] = [Lookup()]
    if recycling:
        drafters.append(recycled := Recycling(int(np.iinfo(np.uint16).max)))

        def evaluated(context: Sequence[int], draft: Draft, path: Sequence[int]) -> None:
            item, start = world.item, len(context) - 1
            if item is not None and len(context) == len(item.prompt):
                recycled.evaluated(Evaluated(0, item.prompt[:-1], (-1,) * start, tuple(range(start))))
            if item is not None:
                top, kept = rows.top(item, context, draft), (0, *(node + 1 for node in path))
                parents = (-1, *(parent + 1 for parent in draft.parents))
                recycled.evaluated(Evaluated(start, (context[-1], *draft.tokens), parents, kept, top))
            world.clock.now += _ROW * (1 + len(draft))

        world.evaluated = evaluated
    if model:
        drafters.append(world.model)
    return world.run(Adaptive(drafters, world.prices, trees=True, clock=world.clock))


def compared(traces: Sequence[str], curves: Sequence[Curve]) -> Iterator[list[str]]:
    """For each curve, and each trace and all of them, the speedups without and with recycling, beside look-ups and
    beside a draft model."""
    loaded = [Trace.load(name) for name in traces]
    with closing(Rows()) as rows:
        for curve in curves:
            totals = np.zeros((4, 2))
            for trace in loaded:
                found = np.array([
                    (outcome.tokens, outcome.seconds)
                    for model, recycling in product((False, True), repeat=2)
                    for outcome in [replayed(trace, curve, rows, model=model, recycling=recycling)]
                ])  # fmt: skip
                totals += found
                yield [curve.name, trace.name, *_ratios(found)]
            yield [curve.name, "all", *_ratios(totals)]


def _ratios(found: Doubles) -> list[str]:
    """Tokens by plain steps; both are in the columns of `found`."""
    return [f"{tokens / seconds:.3f}" for tokens, seconds in found]


@click.command()
@click.option("--trace", "names", multiple=True, default=TRACES, help="Traces to replay [default: all]")
@click.option("--curve", "wanted", default="1.07B", show_default=True, help="Part of the names of price curves")
def main(names: tuple[str, ...], wanted: str) -> None:
    """Replay the controller with and without token recycling."""
    curves = [each.curve(256) for each in load()]
    chosen = [curve for curve in curves if wanted.lower() in curve.name.lower()]
    head = ["prices", "trace", "look-ups", "and recycling", "look-ups, draft model", "and recycling"]
    click.echo(table(head, list(compared(names, chosen))))


if __name__ == "__main__":
    main()
