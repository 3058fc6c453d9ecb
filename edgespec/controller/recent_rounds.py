"""Rounds compared with plain decoding once more, when plain steps show that the machine has changed its pace.

A round is compared with the price of a plain step, which the last ones showed. While drafts are verified no plain step
is made, and the machine may change its pace: where it is slow in the first rounds of a run, drafts seem to lose what
plain decoding would have lost, too, and where it was slow before they seem to gain. Once the new price is known, rounds
are compared with it if their passes had changed their pace, too.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple


class Compared(NamedTuple):
    """How a round was compared with plain decoding.

    Args:
        held: tokens in the cache before it.
        seconds: those that were compared.
        plain: the price of a plain step, in seconds, that they were compared with.
        pace: the seconds of the round's pass over its price at that time.
        asked: whether drafters with a price were asked.
    """

    held: int
    seconds: float
    plain: float
    pace: float
    asked: bool

    def gained(self, plain: float) -> float:
        """Plain steps that the round took less than was observed, now that a plain step is known to take `plain`
        seconds. Nothing if its pass was nearer to the former pace, by the ratio."""
        middle = math.sqrt(plain / self.plain)
        changed = self.pace > middle if plain > self.plain else self.pace < middle
        return self.seconds / self.plain - self.seconds / plain if changed else 0.0


class Correction(NamedTuple):
    """Plain steps that rounds took less than was observed; below 0 where they took more.

    Args:
        free: rounds in which no drafter with a price was asked.
        asked: the others.
    """

    free: float
    asked: float


class RecentRounds:
    """The rounds since the last plain step that showed the price of one."""

    def __init__(self) -> None:
        self._rounds: list[Compared] = []

    def add(self, compared: Compared) -> None:
        """A round that made more than a plain step."""
        self._rounds.append(compared)

    def correct(self, plain: Callable[[int], float]) -> Correction:
        """Compare the rounds again and forget them.

        Args:
            plain: the seconds of a plain step by tokens in the cache, as plain steps after the rounds showed them.
        """
        gains = {True: 0.0, False: 0.0}
        for each in self._rounds:
            gains[each.asked] += each.gained(plain(each.held))
        self._rounds.clear()
        return Correction(gains[False], gains[True])
