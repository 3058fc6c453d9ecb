"""Speedups: ratios of the time per token of two contenders, with confidence intervals.

Intervals are symmetric bootstrap-t intervals of the ratio's logarithm over questions (P. Hall, The Bootstrap and
Edgeworth Expansion, 1992, section 3.6): the turns of a question are not independent, so they are resampled together.
`tests/test_bench_coverage.py` simulates the coverage of this method and of others.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from ..types import Doubles
from .records import OURS, PLAIN, AnswerRecord, Run
from .scopes import ALL, Scope

FEWEST_QUESTIONS = 8  #: for an interval; with fewer its coverage is too low
FEWEST_TOKENS = 30  #: of each contender for a ratio; with fewer it is noise
_FEWEST_RATIOS = 3  # for a median
_RESAMPLES = 1000
_SEED = 0
_SURE = 95  # percent
#: The maximal half width of an interval in standard errors, which a single outlier would make infinite.
_WIDEST = 5.0
_SIGNS = np.array([1.0, -1.0, -1.0, 1.0])  # of the logarithms of a row's sums in that of their ratio
_FIXED = "k="  # the prefix of edgespec's contenders with a fixed draft length


class Estimate(NamedTuple):
    """A figure and its 95% interval; None for fewer than `FEWEST_QUESTIONS`."""

    value: float
    interval: tuple[float, float] | None = None


@dataclass(frozen=True, slots=True)
class Speedup:
    """A speedup over the questions that both contenders answered.

    Args:
        decoding: by the seconds per token, without the prompt; None with fewer than `FEWEST_TOKENS` tokens.
        whole: the same with the prompt, over the questions with equally many tokens of both contenders: otherwise the
            prompt would have different weights.
        median: of the ratios of single questions, without the prompt; None where too few have enough tokens.
        questions: how many both answered, with known time of the prompt.
    """

    decoding: Estimate | None
    whole: Estimate | None
    median: float | None
    questions: int


class BestConfiguration(NamedTuple):
    """The fastest of several configurations of one engine: its speedup over plain decoding, and edgespec's over it."""

    family: str
    configuration: str
    of: int
    speedup: Estimate
    ours: Speedup


Question = tuple[str, str, bool]  # category, name, replayed


def speedup(run: Run, contender: str, scope: Scope = ALL, *, base: str = PLAIN) -> Speedup:
    """The speedup of `contender` over `base`."""
    theirs, its = _by_question(run.by(base), scope), _by_question(run.by(contender), scope)
    decoding, whole = [], []
    for question, answers in its.items():
        turns = sorted(answers.keys() & theirs.get(question, {}).keys())
        sides = [[side[turn] for turn in turns] for side in (theirs.get(question, {}), answers)]
        tokens = [[answer.tokens for answer in side] for side in sides]
        seconds = [[each for answer in side if (each := answer.decoding) is not None] for side in sides]
        if turns and all(len(side) == len(turns) for side in seconds):
            decoding.append(_row(seconds, tokens))
        if turns and tokens[0] == tokens[1]:
            whole.append(_row([[answer.seconds for answer in side] for side in sides], tokens))
    ratios = [ratio for row in decoding if (ratio := _ratio(np.array(row))) is not None]
    median = statistics.median(ratios) if len(ratios) >= _FEWEST_RATIOS else None
    return Speedup(_estimate(decoding), _estimate(whole), median, len(decoding))


def families(run: Run) -> Mapping[str, list[str]]:
    """Contenders that are configurations of one engine: of each peer, and of edgespec with a fixed K."""
    found: defaultdict[str, list[str]] = defaultdict(list)
    for each in run.contenders:
        if each.peer and not each.skipped:
            found[each.name.partition(":")[0]].append(each.name)
        elif each.name.startswith(_FIXED):
            found["fixed K"].append(each.name)
    return found


def best_configurations(run: Run) -> list[BestConfiguration]:
    """The configuration of each family with the highest total speedup, of those with most answered questions."""
    found = []
    for family, names in families(run).items():
        totals = {name: speedup(run, name) for name in names}
        most = max(each.questions for each in totals.values())
        values = {n: each.decoding for n, each in totals.items() if each.decoding and each.questions == most}
        if values:
            best, estimate = max(values.items(), key=lambda item: item[1].value)
            found.append(BestConfiguration(family, best, len(names), estimate, speedup(run, OURS, base=best)))
    return found


def _by_question(answers: Sequence[AnswerRecord], scope: Scope) -> Mapping[Question, Mapping[int, AnswerRecord]]:
    found: defaultdict[Question, dict[int, AnswerRecord]] = defaultdict(dict)
    for answer in answers:
        if scope.holds(answer):
            found[answer.category, answer.question, answer.replayed][answer.turn] = answer
    return found


def _row(seconds: Sequence[Sequence[float]], tokens: Sequence[Sequence[int]]) -> list[float]:
    """The terms of the ratio's sums: seconds and tokens of the base, and those of the contender."""
    return [sum(seconds[0]), sum(tokens[0]), sum(seconds[1]), sum(tokens[1])]


def _ratio(sums: Doubles) -> float | None:
    seconds, tokens, its_seconds, its_tokens = map(float, sums)
    if min(seconds, its_seconds) <= 0 or min(tokens, its_tokens) < FEWEST_TOKENS:
        return None
    return seconds / tokens / (its_seconds / its_tokens)


def _estimate(rows: Sequence[Sequence[float]]) -> Estimate | None:
    """The ratio of sums of `rows`, with its interval."""
    kept = np.array(rows, dtype=float).reshape(-1, 4)
    value = _ratio(kept.sum(axis=0))
    if value is None or len(kept) < FEWEST_QUESTIONS:
        return None if value is None else Estimate(value)
    half = spread(kept)
    return Estimate(value, (value * math.exp(-half), value * math.exp(half)))


def spread(rows: Doubles) -> float:
    """Half the width of the 95% interval of the logarithm of the ratio of sums of `rows`, [questions, 4]."""
    (logarithm,), (error,) = _logarithms(rows, np.ones((1, len(rows))))
    drawn, errors = _logarithms(rows, _weights(len(rows)))
    known = np.isfinite(drawn) & (errors > 0)
    if not known.any():
        return 0.0
    away = np.abs(drawn - logarithm)[known] / errors[known]
    return float(error * min(np.percentile(away, _SURE), _WIDEST))


def _logarithms(rows: Doubles, weights: Doubles) -> tuple[Doubles, Doubles]:
    """The logarithm of the ratio of weighted sums of `rows` and its standard error, by the delta method, for each row
    of `weights`, [samples, questions]."""
    n = len(rows)
    sums = weights @ rows
    with np.errstate(divide="ignore", invalid="ignore"):
        logarithms: Doubles = np.log(sums) @ _SIGNS
        influence = (_SIGNS * n / sums) @ rows.T
        errors: Doubles = np.sqrt((weights * influence**2).sum(axis=1) / (n * (n - 1)))
    return logarithms, errors


@lru_cache(maxsize=16)
def _weights(n: int) -> Doubles:
    """How often each of `n` questions is drawn in each resample, [resamples, n]."""
    drawn: Doubles = np.random.default_rng(_SEED).multinomial(n, np.full(n, 1 / n), size=_RESAMPLES).astype(float)
    return drawn
