"""How often a drafter's tokens are accepted, learned from what was accepted.

All figures are conditional: the chance that a token is accepted once all before it were. A token behind the first
rejection was never tried and is no evidence.
"""

from __future__ import annotations

from bisect import bisect_right
from itertools import pairwise

_EDGES = (
    0.1,
    0.25,
    0.4,
    0.55,
    0.7,
    0.8,
    0.88,
    0.94,
    0.975,
)  # of confidence; finer where a sure drafter's guesses crowd
_MIDDLES = tuple((low + high) / 2 for low, high in pairwise((0.0, *_EDGES, 1.0)))

ALONE, AGREED, AGAINST = range(3)  #: no other drafter spoke; another says the same; another says something else


class Cell:
    """A decayed success rate, shrunk towards a prior. `value` is the chance of a hit."""

    __slots__ = ("_decay", "_hits", "_prior", "_tries", "_weight", "value")

    def __init__(self, prior: float, weight: float, decay: float) -> None:
        self.value = prior
        self._prior = prior
        self._weight = weight
        self._decay = decay
        self._hits = 0.0
        self._tries = 0.0

    def add(self, hit: bool) -> None:
        """Learn from one try."""
        self._hits = self._hits * self._decay + hit
        self._tries = self._tries * self._decay + 1
        self.value = (self._hits + self._prior * self._weight) / (self._tries + self._weight)


class Calibration:
    """Conditional acceptance by drafter and feature.

    The features of a guess: its rank among the drafter's guesses, its confidence, and whether other drafters agree.
    Where they do not, the confidence itself is the prior. `expected` is what came at each depth whatever the
    confidence: what can be said before a drafter is asked.
    """

    def __init__(self, optimism: float = 0.7) -> None:
        self._optimism = optimism
        self._cells: dict[tuple[str, int, int], list[Cell]] = {}
        self._ahead: dict[str, Ahead] = {}

    def cell(self, drafter: str, rank: int, relation: int, confidence: float) -> Cell:
        """The cell of a guess; `rank` 0 is the drafter's likeliest."""
        row = self._cells.get((drafter, rank, relation))
        if row is None:
            row = self._cells[drafter, rank, relation] = [_fresh(relation, middle) for middle in _MIDDLES]
        return row[bisect_right(_EDGES, confidence)]

    def ahead(self, drafter: str) -> Ahead:
        """What is expected of a drafter's guesses before it is asked."""
        ahead = self._ahead.get(drafter)
        if ahead is None:
            ahead = self._ahead[drafter] = Ahead(self._optimism)
        return ahead


class Ahead:
    """How often a drafter's next guess is right before it is known: the first of a round, and those that follow."""

    def __init__(self, optimism: float) -> None:
        self.first = Cell(optimism, 2.0, 0.97)
        self.later = Cell(optimism, 2.0, 0.98)


def _fresh(relation: int, confidence: float) -> Cell:
    prior = (confidence, 1 - (1 - confidence) * 0.4, confidence * 0.8)[relation]
    return Cell(prior, 3.0, 0.99)
