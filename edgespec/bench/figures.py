"""The figures of a set of answers: rates, latencies, acceptance."""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from .records import OURS, PLAIN, AnswerRecord, Depth, Pass, Run
from .scopes import ALL, Scope
from .speedups import FEWEST_TOKENS, Speedup, speedup

_PERCENTILES = {50: 3, 95: 20, 99: 100}  # and the number of values that each requires


class Latency(NamedTuple):
    """The 50th, 95th and 99th percentile in seconds; None where there are too few values."""

    p50: float | None
    p95: float | None
    p99: float | None


class TextMatches(NamedTuple):
    """Free answers with the same tokens as plain decoding's: how many, of how many compared; `unknown` counts those
    whose tokens the engine does not report. Replayed answers are the same by construction and do not count."""

    same: int
    compared: int
    unknown: int


class Stage(NamedTuple):
    """A number of consecutive rounds: the average tokens drafted and accepted per round."""

    rounds: int
    drafted: float
    accepted: float


@dataclass(frozen=True, slots=True)
class Figures:
    """The figures of one contender; None where they are not known.

    Args:
        answers: turns answered.
        tokens_per_second: without the time of the prompt; None for fewer than `FEWEST_TOKENS`.
        mean_accepted_length: tokens per pass of the target.
        first: median seconds to the first token.
        gaps: seconds between consecutive tokens; 0 within a burst.
        waits: seconds between consecutive bursts of tokens.
        joules: energy per token.
        lengths: the number of rounds by drafted tokens (K).
        depths: by drafter, its guesses at depth 1, 2, ..., drafted and accepted.
    """

    contender: str
    scope: Scope
    answers: int
    tokens: int
    speedup: Speedup
    tokens_per_second: float | None
    mean_accepted_length: float | None
    first: float | None
    gaps: Latency | None
    waits: Latency | None
    joules: float | None
    same: TextMatches
    lengths: Mapping[int, int]
    depths: Mapping[str, tuple[Depth, ...]]


def figures(run: Run, contender: str, scope: Scope = ALL) -> Figures:
    """The figures of `contender` in `scope`."""
    answers = [answer for answer in run.by(contender) if scope.holds(answer)]
    tokens, rounds = sum(answer.tokens for answer in answers), _rounds(answers)
    paces = [(answer.tokens, seconds) for answer in answers if (seconds := answer.decoding) is not None]
    firsts = [answer.first for answer in answers if answer.first is not None]
    return Figures(
        contender=contender,
        scope=scope,
        answers=len(answers),
        tokens=tokens,
        speedup=speedup(run, contender, scope),
        tokens_per_second=_pace(paces),
        mean_accepted_length=sum(each.tokens for each in rounds) / len(rounds) if rounds else None,
        first=statistics.median(firsts) if firsts else None,
        gaps=_latency(gaps(answers)),
        waits=_latency(waits(answers)),
        joules=_joules(answers),
        same=_sameness(run, answers),
        lengths=dict(sorted(Counter(each.drafted for each in rounds).items())),
        depths=_depths(answers),
    )


def gaps(answers: Iterable[AnswerRecord]) -> list[float]:
    """Seconds between consecutive tokens; 0 within a burst."""
    return [gap for answer in answers for gap in answer.gaps]


def waits(answers: Iterable[AnswerRecord]) -> list[float]:
    """Seconds between consecutive bursts."""
    pairs = (pair for answer in answers for pair in zip(answer.bursts, answer.bursts[1:], strict=False))
    return [later.seconds - earlier.seconds for earlier, later in pairs]


def course(run: Run, scope: Scope = ALL, *, stages: int = 60) -> list[Stage]:
    """The tokens drafted by edgespec over time: its rounds in order, in at most `stages` parts of similar size."""
    rounds = _rounds(answer for answer in run.by(OURS) if scope.holds(answer))
    kept = np.array([(each.drafted, each.accepted) for each in rounds], dtype=float).reshape(-1, 2)
    parts = np.array_split(kept, min(stages, len(kept)) or 1)
    return [Stage(len(part), *map(float, part.mean(axis=0))) for part in parts if len(part)]


def _rounds(answers: Iterable[AnswerRecord]) -> list[Pass]:
    return [each for answer in answers for each in answer.passes]


def _pace(answers: Sequence[tuple[int, float]]) -> float | None:
    """Tokens per second of answers' tokens and seconds."""
    tokens, seconds = (sum(column) for column in zip(*answers, strict=True)) if answers else (0, 0.0)
    return tokens / seconds if tokens >= FEWEST_TOKENS and seconds > 0 else None


def _latency(seconds: Sequence[float]) -> Latency | None:
    values = [
        float(np.percentile(seconds, p)) if len(seconds) >= fewest else None for p, fewest in _PERCENTILES.items()
    ]
    return Latency(*values) if any(each is not None for each in values) else None


def _joules(answers: Iterable[AnswerRecord]) -> float | None:
    known = [(answer.joules, answer.tokens) for answer in answers if answer.joules is not None]
    tokens = sum(count for _, count in known)
    return sum(joules for joules, _ in known) / tokens if tokens else None


def _sameness(run: Run, answers: Iterable[AnswerRecord]) -> TextMatches:
    plain = {(a.category, a.question, a.turn): a.digest for a in run.by(PLAIN) if not a.replayed and a.digest}
    free = [answer for answer in answers if not answer.replayed]
    pairs = [(a.digest, plain[key]) for a in free if (key := (a.category, a.question, a.turn)) in plain]
    known = [(its, other) for its, other in pairs if its]
    return TextMatches(sum(its == other for its, other in known), len(known), len(pairs) - len(known))


def _depths(answers: Iterable[AnswerRecord]) -> Mapping[str, tuple[Depth, ...]]:
    found: defaultdict[str, Counter[tuple[int, bool]]] = defaultdict(Counter)
    for answer in answers:
        for drafter, rows in answer.depths.items():
            for depth, (drafted, accepted) in enumerate(rows):
                found[drafter][depth, False] += drafted
                found[drafter][depth, True] += accepted
    return {
        drafter: tuple(Depth(sums[depth, False], sums[depth, True]) for depth in range(len(sums) // 2))
        for drafter, sums in found.items()
    }
