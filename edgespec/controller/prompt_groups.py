"""Prompts that begin alike form a group, and what is learned in a group's answers counts most for its next one.

How often a guess is right depends on the task, and prompts of one task or one conversation mostly share their first
words. An answer of 60 tokens is over before its own guesses tell much; earlier answers to such prompts do.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from ..backends import common_prefix
from .fingerprint import Fingerprint

# That are remembered. 48 bring mixes 0.5% and 1.2% more than 16 do in a run; those of an earlier run bring nothing with
# 8, 2.7% with 16 and 3.3% with 48 (simulated).
_PROMPTS = 48
_COMPARED = 512  # of their tokens


@dataclass(frozen=True)
class Prompt:
    """A prompt of this run, its first tokens."""

    group: int
    tokens: tuple[int, ...]

    def shared(self, tokens: Sequence[int]) -> int:
        """How many tokens a prompt has in common with this one."""
        return common_prefix(self.tokens, tokens)


class PromptGroups:
    """Groups of the last prompts.

    A prompt joins the group of the earlier one with which it has the longest prefix in common if it continues that
    prompt, as the next turn of a conversation does, or if that prefix is longer than the one that all prompts have in
    common: a chat template and a system prompt say nothing of the task.
    """

    def __init__(self) -> None:
        self._prompts = deque[Prompt | Fingerprint](maxlen=_PROMPTS)
        self._next = 0

    def join(self, prompt: Sequence[int]) -> int:
        """The number of the group that `prompt` joins, a new one where it is like no earlier prompt."""
        beginning = tuple(prompt[:_COMPARED])
        group = self._like(beginning)
        if group is None:
            group = self._next
            self._next += 1
        self._prompts.append(Prompt(group, beginning))
        return group

    @property
    def remembered(self) -> set[int]:
        """The groups of the prompts that are remembered."""
        return {each.group for each in self._prompts}

    def kept(self) -> list[Any]:
        """Fingerprints of the prompts, as JSON has them."""
        return [self._fingerprint(each).kept() for each in self._prompts]

    def remember(self, kept: Iterable[Sequence[Any]]) -> None:
        """Begin with the prompts that `kept` gave.

        Raises:
            TypeError, ValueError: something else.
        """
        self._prompts.extend(map(Fingerprint.read, kept))
        self._next = 1 + max(self.remembered, default=-1)

    def _like(self, beginning: tuple[int, ...]) -> int | None:
        alike = [(shared, each) for each in self._prompts if (shared := each.shared(beginning)) is not None]
        if not alike:
            return None
        common, longest = min(shared for shared, _ in alike), max(shared for shared, _ in alike)
        latest = next(each for shared, each in reversed(alike) if shared == longest)
        continues = isinstance(latest, Prompt) and longest == len(latest.tokens)
        return latest.group if longest > common or continues else None

    def _fingerprint(self, prompt: Prompt | Fingerprint) -> Fingerprint:
        if isinstance(prompt, Fingerprint):
            return prompt
        alike = (each.shared(prompt.tokens) for each in self._prompts)
        return Fingerprint.of(prompt.group, prompt.tokens, min(shared for shared in alike if shared is not None))


class GroupMean:
    """The mean of observations in a group of prompts, where few of them are completed by the mean of all answers.

    It differs from that of all answers only where earlier answers belong to the group, and others do not.

    Args:
        decay: what observations count after each further `add` in their group.
        weight: observations for which the mean of all answers counts.
    """

    __slots__ = ("_decay", "_group", "_is_apart", "_sums", "_weight")

    def __init__(self, decay: float, weight: float) -> None:
        self._decay = decay
        self._weight = weight
        self._group = -1  # before the first prompt
        self._is_apart = False  # whether earlier answers belong to the group, and others do not
        #: By group, the sum of the observations and their number.
        self._sums: dict[int, tuple[float, float]] = {}

    def enter(self, group: int, remembered: Collection[int]) -> None:
        """An answer of `group` begins; groups that are not remembered are forgotten."""
        self._group = group
        for gone in self._sums.keys() - {*remembered}:
            del self._sums[gone]
        self._is_apart = group in self._sums and len(self._sums) > 1

    def add(self, observed: float, number: float = 1.0) -> None:
        """Learn from one observation in the present group, or from the sum of several."""
        total, count = self._sums.get(self._group, (0.0, 0.0))
        self._sums[self._group] = (self._decay * total + observed, self._decay * count + number)

    def given(self, mean: float) -> float:
        """The mean expected in the present group, where that of all answers is `mean`."""
        if not self._is_apart:
            return mean
        total, count = self._sums[self._group]
        return (total + self._weight * mean) / (count + self._weight)

    def kept(self) -> list[list[float]]:
        """By group, the sum of the observations and their number, as JSON has them."""
        sums = ((group, round(total, 3), round(count, 3)) for group, (total, count) in self._sums.items())
        return [[group, total, count] for group, total, count in sums if count]

    def remember(self, kept: Iterable[Sequence[float]]) -> None:
        """Begin with what `kept` gave.

        Raises:
            ValueError: sums of no observations.
        """
        for group, total, count in kept:
            if not math.isfinite(total) or not 0 < count < math.inf:
                raise ValueError(kept)
            self._sums[int(group)] = (total, count)
