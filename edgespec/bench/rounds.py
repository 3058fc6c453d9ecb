"""The data of an answer's rounds: drafted and accepted tokens, and the origin of the text."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence

from ..types import Round
from .records import Depth, Pass, Stretch


def passes(rounds: Iterable[tuple[Round, float]]) -> tuple[Pass, ...]:
    """The tokens and the seconds of each round."""
    return tuple(Pass(len(each.draft), len(each.path), len(each.tokens), seconds) for each, seconds in rounds)


def depths(rounds: Iterable[Round]) -> dict[str, tuple[Depth, ...]]:
    """By drafter, its guesses at each depth, drafted and accepted."""
    found: defaultdict[str, list[list[int]]] = defaultdict(list)
    for each in rounds:
        level = [0] * len(each.draft)
        for node, (parent, drafter) in enumerate(zip(each.draft.parents, each.draft.drafters, strict=True)):
            level[node] = level[parent] + 1 if parent >= 0 else 0
            rows = found[drafter]
            while len(rows) <= level[node]:
                rows.append([0, 0])
            rows[level[node]][0] += 1
            rows[level[node]][1] += node in each.path
    return {name: tuple(Depth(*row) for row in rows) for name, rows in sorted(found.items())}


def strip(rounds: Iterable[Round], text: Callable[[Sequence[int]], str]) -> tuple[Stretch, ...]:
    """The text of an answer by origin, with the rejected tokens at their places."""
    stretches: list[Stretch] = []
    for each in rounds:
        accepted = [each.draft.tokens[node] for node in each.path][: len(each.tokens)]
        lost = [token for node, token in enumerate(each.draft.tokens) if node not in each.path]
        own = each.tokens[len(accepted) :]
        for tokens, kind in ((accepted, "accepted"), (lost, "rejected"), (own, "own")):
            if said := text(tokens):
                stretches.append(Stretch(said, kind))
    return tuple(stretches)
