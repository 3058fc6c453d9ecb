"""A block of guesses in one pass against a step for each guess: `python -m benchmarks.simulator.blocks`.

The block drafter is made of the trace's draft model: one pass at depth d guesses what that guessed at d, d + 1, ... by
itself, and is as often right as that at d, less often at every further depth: it does not know the tokens between.
A pass that makes n guesses reads n + 1 tokens; the draft model runs in the engine of the curve, or in that of another.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import product

import click

from edgespec.controller.adaptive import Adaptive
from edgespec.drafters import Drafter
from edgespec.drafters.lookup import Lookup
from edgespec.types import Guess, Round
from edgespec.verify import RoundContext

from .engines import markdown
from .trace import DEPTH, Trace
from .world import CURVES, Curve, World

_NEVER = 1 << 20  # a token that no text has


class Block:
    """The guesses of a trace's draft model, those of one pass for the price of the pass.

    Args:
        world: of the trace.
        kept: of the guesses that are right step by step, the share that is right at a depth further from the pass,
            for each depth between.
        guesses: of a pass, at most.
        own: the curve of the engine of the draft model.
    """

    name = "pard"

    def __init__(self, world: World, kept: float, guesses: int, own: Curve | None = None) -> None:
        curve = own or world.curve
        self.block_prices = [world.curve.step * seconds for seconds in curve.seconds[1 : 1 + guesses]]
        self.step_price = self.block_prices[0]
        self._world = world
        self._kept = kept
        self._planned = guesses
        self._context = 0
        self._pass: tuple[tuple[int, ...], int] = (), 0

    def begin(self, round_context: RoundContext) -> None:
        self._context = len(round_context.tokens)
        self._planned, self._pass = len(self.block_prices), ((), 0)

    def plan(self, guesses: int) -> None:
        self._planned = min(guesses, len(self.block_prices))

    def guess(self, path: Sequence[int], most: int) -> Sequence[Guess]:
        """A pass after tokens that are not in the answer guesses nothing: none was recorded there."""
        path, item = tuple(path), self._world.model.item
        start, made = self._pass
        if not (len(start) <= len(path) < len(start) + made and path[: len(start)] == start):
            start, made = self._pass = path, self._planned
            self._world.clock.now += self.block_prices[made - 1]
        if item is None:
            return ()
        begin = self._context - len(item.prompt)
        at, depth = begin + len(start), len(path) - len(start)
        if at >= len(item.answer) or start != item.answer[begin:at] or depth >= DEPTH:
            return ()
        sure = self._kept**depth
        spoiled = random.Random(at * DEPTH + depth).random() >= sure  # noqa: S311 - the same one every time
        known = zip(item.guesses[at, depth, :most], item.probs[at, depth, :most], strict=True)
        return [Guess(int(token) + _NEVER * spoiled, float(chance) * sure) for token, chance in known]

    def observe(self, round: Round) -> None:  # noqa: A002
        """It learns nothing."""

    def close(self) -> None:
        """It holds nothing."""


def speedup(trace: Trace, curve: Curve, block: Callable[[World], Block] | None = None) -> float:
    """Tokens per plain step's time with look-ups and the draft model, step by step or in blocks."""
    world = World(trace, curve)
    drafter: Drafter = world.model if block is None else block(world)
    controller = Adaptive([Lookup(), drafter], world.prices, clock=world.clock)
    return trace.tokens / world.run(controller).seconds


@click.command()
@click.option("--kept", multiple=True, type=float, default=(0.95, 0.9, 0.8), show_default=True)
@click.option("--guesses", default=8, show_default=True, help="Guesses of a pass, at most")
@click.option("--step", "steps", multiple=True, type=float, default=(0.05, 0.15), show_default=True)
@click.option("--trace", "names", multiple=True, default=("chat", "mix"), show_default=True)
@click.option("--draft-curve", type=click.Choice([curve.name for curve in CURVES]), help="Of the draft model's engine")
def main(
    kept: tuple[float, ...], guesses: int, steps: tuple[float, ...], names: tuple[str, ...], draft_curve: str | None
) -> None:
    """Print the speedups over plain decoding as a table in Markdown."""
    own = next((curve for curve in CURVES if curve.name == draft_curve), None)
    blocks = [partial(Block, kept=each, guesses=guesses, own=own) for each in kept]
    rows = []
    for name, step, curve in product(names, steps, CURVES):
        trace, priced = Trace.load(name), replace(curve, step=step)
        found = [speedup(trace, priced, block) for block in (None, *blocks)]
        rows.append([name, f"{step:g}", curve.name, *(f"{each:.3f}" for each in found)])
    click.echo(markdown(["trace", "step", "curve", "steps", *(f"block, {each:g} kept" for each in kept)], rows))


if __name__ == "__main__":
    main()
