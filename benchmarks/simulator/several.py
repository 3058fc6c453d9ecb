"""Several drafters with a price, and the order in which they are given: `python -m benchmarks.simulator.several`.

*Model* is the draft model of the trace. A *twin* guesses the same for a quarter of its price, and a *poor* one takes as
long as the model and guesses another token at 45% of all places. Pieces of 250 tokens begin without calibration each,
or the whole trace does once.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace

import click

from edgespec.controller.adaptive import Adaptive
from edgespec.drafters import Drafter
from edgespec.types import Guess
from edgespec.verify import RoundContext

from ..report import table
from .measured import flat
from .trace import DEPTH, Trace
from .world import CURVES, Curve, Recorded, World

_NEVER = 1 << 20  # a token that no text has
_PIECE = 250  # tokens
_READING = 0.3  # of a token that is read, in guesses
_ORDERS = (
    ("model",),
    ("model", "twin"),
    ("twin", "model"),
    ("model", "poor"),
    ("poor", "model"),
    ("model", "poor", "twin"),
)


class Other(Recorded):
    """A drafter that guesses what the draft model of a world does.

    Args:
        price: of a guess, in those of the model.
        wrong: the share of places at which it guesses another token.
    """

    def __init__(self, world: World, name: str, price: float = 1.0, wrong: float = 0.0) -> None:
        super().__init__(world.clock, price * world.curve.step, _READING)
        self.name = name
        self._world = world
        self._wrong = wrong

    def begin(self, round_context: RoundContext) -> None:
        self.item = self._world.item
        super().begin(round_context)

    def guess(self, path: Sequence[int], most: int) -> Sequence[Guess]:
        guesses = super().guess(path, most)
        spoiled = random.Random((self._at + len(path)) * DEPTH).random() < self._wrong  # noqa: S311 - always the same
        return [guess._replace(token=guess.token + _NEVER * spoiled) for guess in guesses]


def seconds(trace: Trace, curve: Curve, names: Sequence[str]) -> float:
    """What a controller without calibration takes for the trace with look-ups and `names`, in that order."""
    world = World(trace, curve, reading=_READING)
    known = {"model": world.model, "twin": Other(world, "twin", price=0.25), "poor": Other(world, "poor", wrong=0.45)}
    drafters: list[Drafter] = [world.look_up, *(known[name] for name in names)]
    return world.run(Adaptive(drafters, world.prices, clock=world.clock)).seconds


def pieces(trace: Trace) -> Iterator[Trace]:
    """The answers of the trace in pieces of `_PIECE` tokens or a little more."""
    piece = Trace(trace.name, [])
    for item in trace.items:
        piece.items.append(item)
        if piece.tokens >= _PIECE:
            yield piece
            piece = Trace(trace.name, [])


def rows() -> Iterator[tuple[str, ...]]:
    """The speedup over plain decoding for each text, curve and order."""
    for name in ("chat", "copy", "mix"):
        whole = Trace.load(name)
        short = list(pieces(whole))
        for curve in (replace(each, step=0.06) for each in (CURVES[0], flat()[0])):
            for names in _ORDERS:
                took = sum(seconds(piece, curve, names) for piece in short)
                yield (
                    name,
                    curve.name,
                    ", ".join(names),
                    f"{sum(piece.tokens for piece in short) / took:.3f}",
                    f"{whole.tokens / seconds(whole, curve, names):.3f}",
                )


@click.command()
def main() -> None:
    """Print the table."""
    click.echo(table(["text", "prices", "drafters", f"pieces of {_PIECE} tokens", "the whole text"], rows()))


if __name__ == "__main__":
    main()
