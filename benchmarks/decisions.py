"""What deciding on a draft costs, in microseconds: merging guesses, the purchase, and a whole choice.

    python -m benchmarks.decisions [--nodes 64] [--repeats 2000]

Candidate trees are random, by two drafters that agree now and then. Nothing here runs a model.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

import click

from edgespec.controller.adaptive import Adaptive
from edgespec.controller.calibration import Calibration
from edgespec.controller.draft_tree import DraftTree, select_chain, select_tree
from edgespec.prices import Prices
from edgespec.sampling import Sampling
from edgespec.types import Guess, Round
from edgespec.verify import RoundContext, verifier

Ready = TypeVar("Ready")
#: Who says what below which node, in order.
Plan = list[tuple[int, str, tuple[Guess, ...]]]

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

    def begin(self, round_context: RoundContext) -> None:
        """It knows no text."""

    def guess(self, path: Sequence[int], most: int) -> Sequence[Guess]:
        return self._guesses[hash(tuple(path)) % 97][:most]

    def observe(self, round: Round) -> None:  # noqa: A002
        """It learns nothing."""

    def close(self) -> None:
        """It holds nothing."""


def planned(seed: int, nodes: int) -> Plan:
    """What grows a random tree of `nodes`."""
    rng = random.Random(seed)  # noqa: S311
    fakes = [Fake("one", seed), Fake("two", seed + 1)]
    tree = DraftTree(Calibration())
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


def grown(calibration: Calibration, plan: Plan) -> DraftTree:
    """The tree of a plan, merged."""
    tree = DraftTree(calibration)
    for parent, name, guesses in plan:
        tree.add(parent, name, guesses)
    return tree


def median(pieces: Sequence[tuple[Callable[[], Ready], Callable[[Ready], object]]], repeats: int) -> float:
    """Microseconds of a piece of work on what was made ready for it: the median of the pieces, of each the fastest of
    its repeats, for other programs can only slow it down."""
    best = [float("inf")] * len(pieces)
    for _ in range(max(1, repeats // len(pieces))):
        for i, (make_ready, work) in enumerate(pieces):
            ready = make_ready()
            started = time.perf_counter()
            work(ready)
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
    merge = partial(grown, calibration)
    made = [partial(merge, plan) for plan in plans]
    tree, chain = (partial(buy, cost=cost) for buy in (select_tree, select_chain))
    figures = {
        f"merging the guesses of {nodes} nodes": median([(partial(list, plan), merge) for plan in plans], repeats),
        "reach and the best tree": median([(make, tree) for make in made], repeats),
        "the best chain": median([(make, chain) for make in made], repeats),
    }
    rule, sampling = verifier("match"), Sampling()
    drawings = [partial(RoundContext, rule, sampling, range(n + 1), lambda _token: False) for n in range(trees)]
    for name, takes_trees in (("chains", False), ("trees", True)):
        choose = partial(
            Adaptive([Fake("one", 1), Fake("two", 2)], Prices(_CURVE), trees=takes_trees).choose, limit=_WIDTHS - 1
        )
        figures[f"a whole choice, two free drafters, {name}"] = median([(make, choose) for make in drawings], repeats)
    for name, figure in figures.items():
        click.echo(f"{name:<44}{figure:7.1f} us")


if __name__ == "__main__":
    main()
