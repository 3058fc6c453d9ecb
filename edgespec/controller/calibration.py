"""How often a drafter's tokens are accepted, learned from what was accepted.

All figures are conditional: the chance that a token is accepted once all before it were. A token behind the first
rejection was never tried and is no evidence.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from .prompt_groups import GroupMean, PromptGroups
from .time_value import group_speeds

#: Of confidence; finer where a sure drafter's guesses crowd.
_EDGES = (0.1, 0.25, 0.4, 0.55, 0.7, 0.8, 0.88, 0.94, 0.975)
_MIDDLES = tuple((low + high) / 2 for low, high in pairwise((0.0, *_EDGES, 1.0)))
_WEIGHT = 3.0  # tries that the prior of a guess counts for
# Of a guess not yet made. A prior is never forgotten: with this weight a drafter that is always wrong is expected to be
# right in 2% of the cases, with a weight of 3 in 6%, for which cheap drafters were asked all the time.
_AHEAD_WEIGHT = 1.0
_FIRST_AHEAD = 3.0  # tries that it counts for besides at first; these are forgotten as others are
_TRUST = 0.7  # in the confidence of a drafter not yet known
_SUREST = 0.995
# Tries for which what an earlier run learned of all answers counts at most: of a guess, and of one not yet made, whose
# rate in this text may be far from it (docs/controller.md).
_REMEMBERED, _AHEAD_REMEMBERED = 30.0, 4.0
# Tries for which the rate of all answers counts in a group of prompts: of a guess, and of one not yet made.
_IN_GROUP, _AHEAD_IN_GROUP = 4.0, 12.0
_WORTH_IN_GROUP = 4.0  # and times that a drafter was asked, for what that brought
_ROUNDS = 16.0  # in which a drafter is asked after it has read, until that is known
LATELY = 0.93  #: What asking a drafter brought counts for after it was asked once more.


class Rate:
    """A decayed success rate, shrunk towards a prior.

    Args:
        in_group: tries for which the rate of all answers counts in a group of prompts.
    """

    __slots__ = ("decay", "group", "hits", "prior", "tries")

    def __init__(self, prior: float, decay: float, in_group: float = _IN_GROUP) -> None:
        self.prior = prior
        self.decay = decay
        self.hits = 0.0
        self.tries = 0.0
        #: The same of the group of prompts that the answer belongs to.
        self.group = GroupMean(decay, in_group)

    def add(self, hit: bool) -> None:
        """Learn from one try."""
        self.hits = self.hits * self.decay + hit
        self.tries = self.tries * self.decay + 1
        self.group.add(hit)

    @property
    def value(self) -> float:
        """The chance of a hit of a guess not yet made."""
        return self.group.given((self.hits + self.prior * _AHEAD_WEIGHT) / (self.tries + _AHEAD_WEIGHT))

    def kept(self) -> list[Any]:
        """The counts, and those of groups of prompts, as JSON has them."""
        return [round(self.hits, 3), round(self.tries, 3), self.group.kept()]

    def remember(self, counts: Sequence[Any], most: float) -> None:
        """Begin with what `kept` gave. It counts for no more than `most` tries: this text may be another.

        Raises:
            ValueError: counts that no tries can have come to.
        """
        hits, tries, groups = counts
        for right, of in ((hits, tries), *((total, count) for _, total, count in groups)):
            if not 0 <= right <= of + 0.01 or not of < math.inf:
                raise ValueError(counts)
        share = min(1.0, most / tries) if tries else 0.0
        self.hits, self.tries = hits * share, tries * share
        self.group.remember(groups)


class Cell:
    """Guesses of like confidence; `value` is their chance of a hit, as of when the cell was asked for."""

    __slots__ = ("guesses", "rate", "value", "weighed")

    def __init__(self, guesses: Guesses, prior: float) -> None:
        self.rate = Rate(prior, 0.99)
        self.value = prior
        self.guesses = guesses
        self.weighed = 0  # after how many tries of guesses like these


class Guesses:
    """Guesses of one drafter and rank, by confidence.

    What is not known of a cell is its confidence times the trust that the others earned: a drafter that
    promises too much is seen through before every cell has found out by itself.
    """

    __slots__ = ("_hits", "_promised", "_tried", "_trust", "cells")

    def __init__(self) -> None:
        self.cells = [Cell(self, middle) for middle in _MIDDLES]
        self._hits = _TRUST * _WEIGHT
        self._promised = _WEIGHT
        self._tried = 0
        self._weigh()

    def learn(self, cell: Cell, hit: bool) -> None:
        """Learn from one try of a guess of `cell`, for guesses of other confidence too."""
        self._hits = 0.98 * self._hits + hit
        self._promised = 0.98 * self._promised + cell.rate.prior
        self._weigh()
        cell.rate.add(hit)

    def cell(self, confidence: float) -> Cell:
        """The cell of a guess, its value up to date."""
        cell = self.cells[bisect_right(_EDGES, confidence)]
        if cell.weighed == self._tried:
            return cell
        cell.weighed = self._tried
        rate = cell.rate
        prior = min(_SUREST, rate.prior * self._trust)
        cell.value = rate.group.given((rate.hits + prior * _WEIGHT) / (rate.tries + _WEIGHT))
        return cell

    def enter(self, group: int, remembered: Collection[int]) -> None:
        """See `GroupMean.enter`."""
        for cell in self.cells:
            cell.rate.group.enter(group, remembered)
        self._tried += 1  # each cell is weighed anew

    def _weigh(self) -> None:
        """What cells have in common, after which each is weighed anew: far more guesses are judged than tried."""
        self._tried += 1
        self._trust = self._hits / self._promised

    def kept(self) -> list[list[Any]]:
        """The counts, as JSON has them: the trust, then each cell's."""
        return [[round(self._hits, 3), round(self._promised, 3)], *(cell.rate.kept() for cell in self.cells)]

    @classmethod
    def of(cls, counts: Sequence[Sequence[Any]]) -> Guesses:
        """What `kept` gave."""
        guesses = cls()
        (hits, promised), *cells = counts
        if not 0 <= hits < math.inf or not 0 < promised < math.inf:
            raise ValueError(counts)
        share = min(1.0, _REMEMBERED / promised)
        guesses._hits, guesses._promised = hits * share, promised * share
        guesses._weigh()
        for cell, known in zip(guesses.cells, cells, strict=True):
            cell.rate.remember(known, _REMEMBERED)
        return guesses


class Ahead:
    """What is expected of a drafter before it is asked.

    `first` and `later` are how often its next guess is right, the first of a round and those that follow; `worth` is
    what asking it brings, in tokens, see `PricedDrafter.worth`; `rounds` in how many rounds it is asked after it has
    read a text, see `Reading`.
    """

    __slots__ = ("first", "later", "rounds", "worth")

    def __init__(self) -> None:
        self.first = Rate(_TRUST, 0.97, _AHEAD_IN_GROUP)
        self.later = Rate(_TRUST, 0.98, _AHEAD_IN_GROUP)
        for rate in (self.first, self.later):
            rate.remember((_FIRST_AHEAD * _TRUST, _FIRST_AHEAD, ()), _FIRST_AHEAD)
        self.worth = GroupMean(LATELY, _WORTH_IN_GROUP)
        self.rounds = _ROUNDS

    def enter(self, group: int, remembered: Collection[int]) -> None:
        """See `GroupMean.enter`."""
        for mean in (self.first.group, self.later.group, self.worth):
            mean.enter(group, remembered)

    def kept(self) -> list[list[Any]]:
        """The counts, as JSON has them."""
        return [self.first.kept(), self.later.kept(), [round(self.rounds, 2)], self.worth.kept()]

    @classmethod
    def of(cls, counts: Sequence[Sequence[Any]]) -> Ahead:
        """What `kept` gave.

        Raises:
            ValueError: counts that no tries and readings can have come to.
        """
        ahead = cls()
        first, later, (rounds,), worth = counts
        ahead.first.remember(first, _AHEAD_REMEMBERED)
        ahead.later.remember(later, _AHEAD_REMEMBERED)
        ahead.worth.remember(worth)
        if not 1 <= rounds < math.inf:
            raise ValueError(counts)
        ahead.rounds = rounds
        return ahead


class Share(NamedTuple):
    """Which share of the guesses was right, 0 to 1, and how many were judged; the latest count most."""

    right: float
    tries: float


class Calibration:
    """Conditional acceptance by drafter and feature, and what is left of the gains.

    The features of a guess: its rank among the drafter's guesses, its confidence, and the group of the prompt.
    """

    def __init__(self) -> None:
        self._guesses: dict[tuple[str, int], Guesses] = {}
        self._ahead: dict[str, Ahead] = {}
        self._groups = PromptGroups()
        #: The group of the answer under way; -1 before the first one.
        self.group = -1
        #: How fast answers are in groups of prompts, see `TimeValue`.
        self.speeds = group_speeds()
        #: What speculation may lose, in plain steps, after its gains so far (`controller.budget`).
        self.gained = 0.0

    def begin(self, prompt: Sequence[int]) -> None:
        """An answer to `prompt` begins, in tokens."""
        self.group, groups = self._groups.join(prompt), self.groups
        for guesses in self._guesses.values():
            guesses.enter(self.group, groups)
        for ahead in self._ahead.values():
            ahead.enter(self.group, groups)

    @property
    def groups(self) -> Collection[int]:
        """The groups of prompts that are remembered."""
        return self._groups.remembered

    def cell(self, drafter: str, rank: int, confidence: float) -> Cell:
        """The cell of a guess; `rank` 0 is the drafter's likeliest."""
        guesses = self._guesses.get((drafter, rank))
        if guesses is None:
            guesses = self._guesses[drafter, rank] = Guesses()
            guesses.enter(self.group, self.groups)
        return guesses.cell(confidence)

    def ahead(self, drafter: str) -> Ahead:
        """What is expected of a drafter before it is asked."""
        ahead = self._ahead.get(drafter)
        if ahead is None:
            ahead = self._ahead[drafter] = Ahead()
            ahead.enter(self.group, self.groups)
        return ahead

    def learn(self, tried: Iterable[tuple[Cell, bool]]) -> None:
        """Learn from the guesses of one round that were tried, and whether each was right."""
        for cell, hit in tried:
            cell.guesses.learn(cell, hit)

    def summary(self) -> dict[str, Share]:
        """By drafter, how often its likeliest guess was right, as far as it was tried."""
        tried: dict[str, list[tuple[float, float]]] = {}
        for (drafter, rank), guesses in self._guesses.items():
            if rank == 0:
                tried.setdefault(drafter, []).extend((cell.rate.hits, cell.rate.tries) for cell in guesses.cells)
        sums = {drafter: [sum(column) for column in zip(*cells, strict=True)] for drafter, cells in tried.items()}
        return {drafter: Share(hits / tries, tries) for drafter, (hits, tries) in sums.items() if tries}

    def kept(self) -> dict[str, Any]:
        """All that was learned, as JSON has it."""
        return {
            "guesses": [[*key, guesses.kept()] for key, guesses in self._guesses.items()],
            "ahead": {drafter: ahead.kept() for drafter, ahead in self._ahead.items()},
            "gained": round(self.gained, 1),
            "prompts": self._groups.kept(),
            "speeds": [speed.kept() for speed in self.speeds],
        }

    @classmethod
    def of(cls, kept: Mapping[str, Any]) -> Calibration:
        """What an earlier run learned, so that this one begins with it; what makes no sense is left out."""
        calibration = cls()
        try:
            for drafter, rank, counts in kept.get("guesses", ()):
                calibration._guesses[str(drafter), int(rank)] = Guesses.of(counts)
            for drafter, counts in kept.get("ahead", {}).items():
                calibration._ahead[str(drafter)] = Ahead.of(counts)
            calibration._groups.remember(kept.get("prompts", ()))
            for speed, sums in zip(calibration.speeds, kept.get("speeds", ()), strict=False):
                speed.remember(sums)
            calibration.gained = float(kept.get("gained", 0.0))
            if not math.isfinite(calibration.gained):
                return cls()
        except (TypeError, ValueError, AttributeError, IndexError, OverflowError):
            return cls()
        return calibration
