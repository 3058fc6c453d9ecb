"""What deciding on a draft costs, in microseconds: judging guesses, the purchase, and a whole choice.

    python benchmarks/decisions.py [--nodes 64] [--repeats 2000]

Candidate trees are random, by two drafters that agree now and then. Nothing here runs a model.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Sequence

import click

from edgespec.calibration import Calibration
from edgespec.candidates import Candidates, best_chain, best_tree
from edgespec.control import Adaptive
from edgespec.prices import Prices
from edgespec.sampling import Sampling
from edgespec.types import Guess, Round
from edgespec.verify import Drawing, verifier

_WIDTHS = 16
_CURVE = [1 + 0.05 * n for n in range(_WIDTHS)]


class Fake:
    """A drafter that says two tokens wherever it is asked, of a few that another may say too, and takes no time."""

    step_price = 0.0

    def __init__(self, name: str, seed: int) -> None:
        self.name = name
        # Made beforehand: what is measured is the decision.
        rng = random.Random(seed)  # noqa: S311 - nothing secret
        self._guesses = [
            tuple(Guess(token, rng.uniform(0.2, 1)) for token in rng.sample(range(4), 2)) for _ in range(97)
        ]

    def begin(self, drawing: Drawing) -> None:
        """It knows no text."""

    def guess(self, path: Sequence[int], most: int) -> Sequence[Guess]:
        return self._guesses[hash(tuple(path)) % 97][:most]

    def observe(self, round: Round) -> None:  # noqa: A002
        """It learns nothing."""

    def close(self) -> None:
        """It holds nothing."""


def planned(seed: int, nodes: int) -> list[tuple[int, str, tuple[Guess, ...]]]:
    """Who says what below which node, for a tree of `nodes`."""
    rng = random.Random(seed)  # noqa: S311
    fakes = [Fake("one", seed), Fake("two", seed + 1)]
    tree = Candidates(Calibration())
    plan = []
    while len(tree) < nodes:
        parent = rng.randrange(-1, len(tree))
        if tree.children(parent):
            continue
        for fake in fakes:
            guesses = tuple(fake.guess(tree.path(parent), 2))
            plan.append((parent, fake.name, guesses))
            tree.add(parent, fake.name, guesses)
    return plan


def grown(calibration: Calibration, plan: Sequence[tuple[int, str, tuple[Guess, ...]]]) -> Candidates:
    """The tree of a plan: merged and judged."""
    tree = Candidates(calibration)
    for parent, name, guesses in plan:
        tree.add(parent, name, guesses)
    return tree


def median(work: Sequence[Callable[[], object]], repeats: int) -> float:
    """Microseconds of one piece of `work`: the median of the pieces, of each the fastest of its repeats, for other
    programs can only slow it down."""
    best = [float("inf")] * len(work)
    for _ in range(max(1, repeats // len(work))):
        for i, piece in enumerate(work):
            started = time.perf_counter()
            piece()
            best[i] = min(best[i], time.perf_counter() - started)
    return statistics.median(best) * 1e6


@click.command()
@click.option("--nodes", default=64, show_default=True, help="Nodes of a tree")
@click.option("--trees", default=40, show_default=True, help="Random trees")
@click.option("--repeats", default=4000, show_default=True, help="Measurements of each figure")
def main(nodes: int, trees: int, repeats: int) -> None:
    """Time the decisions of a round."""
    cost = [seconds - _CURVE[0] for seconds in _CURVE]
    calibration = Calibration()
    plans = [planned(seed, nodes) for seed in range(trees)]
    made = [grown(calibration, plan) for plan in plans]
    merging = median([lambda plan=plan: grown(calibration, plan) for plan in plans], repeats)
    tree = median([lambda tree=tree: best_tree(tree, cost) for tree in made], repeats)
    chain = median([lambda tree=tree: best_chain(tree, cost) for tree in made], repeats)
    drawings = [Drawing(verifier("match"), Sampling(), range(n + 1), lambda _token: False) for n in range(trees)]
    click.echo(f"merging and judging {nodes} guesses as they come {merging:6.1f} us")
    click.echo(f"reach and the best tree                  {tree:6.1f} us")
    click.echo(f"the best chain                           {chain:6.1f} us")
    for name, price in (("chains", None), ("trees", 0.0)):
        controller = Adaptive([Fake("one", 1), Fake("two", 2)], Prices(_CURVE), trees=price)
        whole = median([lambda d=d: controller.choose(d, _WIDTHS - 1) for d in drawings], repeats)
        click.echo(f"a whole choice, two free drafters, {name:<6}{whole:6.1f} us")


if __name__ == "__main__":
    main()
