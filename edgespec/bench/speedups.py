"""How many times faster than another: ratios of what a token took, and how sure they are.

Intervals are percentile bootstraps over questions (B. Efron, R. Tibshirani, An Introduction to the Bootstrap, 1993,
chapter 13): a question's turns are not independent, so they stay together.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from ..types import Doubles
from .records import OURS, PLAIN, Answer, Run
from .scopes import ALL, Scope

_RESAMPLES = 2000
_SEED = 0
_BOUNDS = (2.5, 97.5)  # percent
_FIXED = "k="  # what the names of ours with a fixed draft length begin with


class Estimate(NamedTuple):
    """A figure and its 95% interval; a single question has none."""

    value: float
    interval: tuple[float, float] | None = None


@dataclass(frozen=True, slots=True)
class Speedup:
    """How many times faster, over the questions that both answered.

    Args:
        decoding: by the seconds a token took, without the prompt; None where there is nothing to compare.
        whole: the same with the prompt.
        median: of the single questions' ratios, without the prompt.
        questions: how many both answered.
    """

    decoding: Estimate | None
    whole: Estimate | None
    median: float | None
    questions: int


class Hindsight(NamedTuple):
    """Of several configurations of one engine the one that proved best, over plain decoding; and ours over that."""

    family: str
    configuration: str
    of: int
    speedup: Estimate
    ours: Speedup


Question = tuple[str, str, bool]  # category, name, replayed


def speedup(run: Run, contender: str, scope: Scope = ALL, *, base: str = PLAIN) -> Speedup:
    """How many times faster `contender` is than `base`."""
    theirs, its = _by_question(run.by(base), scope), _by_question(run.by(contender), scope)
    decoding, whole = [], []
    for question, answers in its.items():
        turns = answers.keys() & theirs.get(question, {}).keys()
        if turns:
            pair = [[side[turn] for turn in sorted(turns)] for side in (theirs[question], answers)]
            tokens = [sum(answer.tokens for answer in side) for side in pair]
            decoding.append(_row([sum(answer.decoding for answer in side) for side in pair], tokens))
            whole.append(_row([sum(answer.seconds for answer in side) for side in pair], tokens))
    ratios = [ratio for ratio in (_ratio(np.array(row)) for row in decoding) if ratio is not None]
    median = statistics.median(ratios) if ratios else None
    return Speedup(_estimate(decoding), _estimate(whole), median, len(decoding))


def families(run: Run) -> Mapping[str, list[str]]:
    """The names of contenders that are one engine in several configurations: each peer, and ours with a fixed K."""
    found: defaultdict[str, list[str]] = defaultdict(list)
    for each in run.contenders:
        if each.peer and not each.skipped:
            found[each.name.partition(":")[0]].append(each.name)
        elif each.name.startswith(_FIXED):
            found["fixed K"].append(each.name)
    return found


def hindsight(run: Run) -> list[Hindsight]:
    """The best configuration of each family, by its total; of those that answered most, lest a lucky few win."""
    found = []
    for family, names in families(run).items():
        totals = {name: speedup(run, name) for name in names}
        most = max(each.questions for each in totals.values())
        values = {n: each.decoding for n, each in totals.items() if each.decoding and each.questions == most}
        if values:
            best, estimate = max(values.items(), key=lambda item: item[1].value)
            found.append(Hindsight(family, best, len(names), estimate, speedup(run, OURS, base=best)))
    return found


def _by_question(answers: Sequence[Answer], scope: Scope) -> Mapping[Question, Mapping[int, Answer]]:
    found: defaultdict[Question, dict[int, Answer]] = defaultdict(dict)
    for answer in answers:
        if scope.holds(answer):
            found[answer.category, answer.question, answer.replayed][answer.turn] = answer
    return found


def _row(seconds: Sequence[float], tokens: Sequence[int]) -> list[float]:
    """What sums of make a ratio: the base's seconds and tokens, and those of what is compared with it."""
    return [seconds[0], tokens[0], seconds[1], tokens[1]]


def _ratio(sums: Doubles) -> float | None:
    seconds, tokens, its_seconds, its_tokens = map(float, sums)
    if min(seconds, tokens, its_seconds, its_tokens) <= 0:
        return None
    return seconds / tokens / (its_seconds / its_tokens)


def _estimate(rows: Sequence[Sequence[float]]) -> Estimate | None:
    """The ratio of sums of `rows`, with its interval."""
    kept = np.array(rows, dtype=float).reshape(-1, 4)
    value = _ratio(kept.sum(axis=0))
    if value is None or len(kept) < 2:
        return None if value is None else Estimate(value)
    sums = _weights(len(kept)) @ kept
    sums = sums[(sums > 0).all(axis=1)]
    low, high = np.percentile(sums[:, 0] / sums[:, 1] / (sums[:, 2] / sums[:, 3]), _BOUNDS).tolist()
    return Estimate(value, (low, high))


@lru_cache(maxsize=16)
def _weights(n: int) -> Doubles:
    """How often each of `n` questions is drawn in each resample, [resamples, n]."""
    drawn: Doubles = np.random.default_rng(_SEED).multinomial(n, np.full(n, 1 / n), size=_RESAMPLES).astype(float)
    return drawn
