"""What answers come to: rates, latencies, acceptance. Each figure is defined here and nowhere else."""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from .records import OURS, PLAIN, Answer, Depth, Pass, Run
from .scopes import ALL, Scope
from .speedups import FEWEST_TOKENS, Speedup, speedup

_PERCENTILES = {50: 3, 95: 20, 99: 100}  # and the cases that each needs


class Latency(NamedTuple):
    """Seconds that are not exceeded in 50, 95 and 99% of the cases; None where there are too few cases to tell: of 20
    cases one in 20 is a single one."""

    p50: float | None
    p95: float | None
    p99: float | None


class Sameness(NamedTuple):
    """Of the free answers that plain decoding gave too: how many say the same, of how many whose tokens are known; and
    how many whose tokens are not told. A replayed answer is the same by force, so it does not count."""

    same: int
    compared: int
    untold: int


class Stage(NamedTuple):
    """A number of rounds, one after another: the tokens drafted and accepted in a round, on average."""

    rounds: int
    drafted: float
    accepted: float


@dataclass(frozen=True, slots=True)
class Figures:
    """The figures of one contender; None where they are not known.

    Args:
        answers: turns answered.
        tokens_per_second: without the time that the prompt took; None of fewer than `FEWEST_TOKENS`.
        mean_accepted_length: tokens a pass of the target.
        first: median seconds to the first token.
        gaps: seconds between a token and the one before it; 0 for those that came together.
        waits: the same between bursts of tokens.
        joules: of energy, a token.
        lengths: how many rounds drafted so many tokens (K).
        depths: by drafter, what became of its guesses at depth 1, 2, ...
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
    same: Sameness
    lengths: Mapping[int, int]
    depths: Mapping[str, tuple[Depth, ...]]


def figures(run: Run, contender: str, scope: Scope = ALL) -> Figures:
    """All that is known of `contender` in `scope`."""
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


def gaps(answers: Iterable[Answer]) -> list[float]:
    """Seconds between each token and the one before it; 0 for those that came together."""
    return [gap for answer in answers for gap in answer.gaps]


def waits(answers: Iterable[Answer]) -> list[float]:
    """Seconds between each burst and the one before it."""
    pairs = (pair for answer in answers for pair in zip(answer.bursts, answer.bursts[1:], strict=False))
    return [later.seconds - earlier.seconds for earlier, later in pairs]


def course(run: Run, scope: Scope = ALL, *, stages: int = 60) -> list[Stage]:
    """How much we drafted over time: the rounds as they came, in at most `stages` parts of like size."""
    rounds = _rounds(answer for answer in run.by(OURS) if scope.holds(answer))
    kept = np.array([(each.drafted, each.accepted) for each in rounds], dtype=float).reshape(-1, 2)
    parts = np.array_split(kept, min(stages, len(kept)) or 1)
    return [Stage(len(part), *map(float, part.mean(axis=0))) for part in parts if len(part)]


def _rounds(answers: Iterable[Answer]) -> list[Pass]:
    return [each for answer in answers for each in answer.passes]


def _pace(answers: Sequence[tuple[int, float]]) -> float | None:
    """Tokens per second of answers' tokens and seconds."""
    tokens, seconds = (sum(column) for column in zip(*answers, strict=True)) if answers else (0, 0.0)
    return tokens / seconds if tokens >= FEWEST_TOKENS and seconds > 0 else None


def _latency(seconds: Sequence[float]) -> Latency | None:
    told = [float(np.percentile(seconds, p)) if len(seconds) >= fewest else None for p, fewest in _PERCENTILES.items()]
    return Latency(*told) if any(each is not None for each in told) else None


def _joules(answers: Iterable[Answer]) -> float | None:
    known = [(answer.joules, answer.tokens) for answer in answers if answer.joules is not None]
    tokens = sum(count for _, count in known)
    return sum(joules for joules, _ in known) / tokens if tokens else None


def _sameness(run: Run, answers: Iterable[Answer]) -> Sameness:
    plain = {(a.category, a.question, a.turn): a.digest for a in run.by(PLAIN) if not a.replayed and a.digest}
    free = [answer for answer in answers if not answer.replayed]
    pairs = [(a.digest, plain[key]) for a in free if (key := (a.category, a.question, a.turn)) in plain]
    told = [(its, other) for its, other in pairs if its]
    return Sameness(sum(its == other for its, other in told), len(told), len(pairs) - len(told))


def _depths(answers: Iterable[Answer]) -> Mapping[str, tuple[Depth, ...]]:
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
