"""What a generation brought, in figures."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from .baseline import Baseline
from .types import Round

_ENOUGH = 30  # tokens whose time tells two speeds apart


@dataclass(frozen=True, slots=True)
class Stats:
    """The figures of one generation.

    Seconds are spent in rounds, without the prompt and without the time the reader of the events took.
    `plain_tokens_per_second` is what plain decoding would have reached for the same tokens at the same time (see
    `Baseline`), None where that is not known. `plain_error` is the standard error of the speedup that follows from it,
    relative to it, as far as the spread of the passes tells: beside busy programs a few stalls decide what it is.
    """

    prompt: int
    cached: int
    prompt_seconds: float
    tokens: int
    rounds: int
    drafted: int
    accepted: int
    seconds: float
    #: Of these, seconds inside the engines: passes of the target, and drafting.
    engine_seconds: float
    plain_tokens_per_second: float | None
    plain_error: float
    #: Drafted and accepted tokens by drafter.
    by_drafter: dict[str, tuple[int, int]]
    #: Rounds by the number of tokens drafted.
    k_histogram: dict[int, int]
    #: By depth in a draft, from its first token on: how often a token there was tried, all before it being accepted,
    #: and how often it was accepted.
    by_depth: tuple[tuple[int, int], ...]

    @property
    def tokens_per_second(self) -> float:
        """Tokens by the seconds of the rounds; 0 if there were none."""
        return self.tokens / self.seconds if self.seconds else 0.0

    @property
    def mean_accepted_length(self) -> float:
        """Tokens committed per pass of the target."""
        return self.tokens / self.rounds if self.rounds else 0.0

    @property
    def acceptance_rate(self) -> float:
        """Accepted of drafted tokens, from 0 to 1; 0 if none was drafted."""
        return self.accepted / self.drafted if self.drafted else 0.0

    @property
    def speedup(self) -> float | None:
        """Over plain decoding; exactly 1 for plain decoding itself, None for fewer than 30 tokens."""
        plain = self.plain_tokens_per_second
        return self.tokens_per_second / plain if plain and self.tokens >= _ENOUGH else None


@dataclass
class Tally:
    """The stats of a generation that goes on."""

    prompt: int
    cached: int
    prompt_seconds: float = 0.0
    tokens: int = 0
    seconds: float = 0.0
    engine_seconds: float = 0.0
    drafted: Counter[str] = field(default_factory=Counter)
    accepted: Counter[str] = field(default_factory=Counter)
    lengths: Counter[int] = field(default_factory=Counter)
    #: Rounds by how deep a draft was tried, and by how deep it was accepted.
    tried: Counter[int] = field(default_factory=Counter)
    reached: Counter[int] = field(default_factory=Counter)
    baseline: Baseline = field(default_factory=Baseline)

    def add(
        self,
        round: Round,  # noqa: A002
        seconds: float,
        speculating: float = 0.0,
        price: float | None = None,
        plain_price: float | None = None,
    ) -> None:
        """Count a round that took `seconds` in all, see `Baseline.add`."""
        self.baseline.add(round, seconds, speculating, price, plain_price)
        self.tokens += len(round.tokens)
        self.seconds += seconds
        self.engine_seconds += round.verify_seconds + round.draft_seconds
        self.lengths[len(round.draft)] += 1
        if round.draft:
            self.drafted.update(round.draft.drafters)
            self.accepted.update(round.draft.drafters[node] for node in round.path)
            depth = len(round.path)
            self.reached[depth] += 1
            self.tried[depth + ((round.path[-1] if depth else -1) in round.draft.parents)] += 1

    def stats(self) -> Stats:
        """The figures now."""
        plain = self.baseline.seconds
        return Stats(
            prompt=self.prompt,
            cached=self.cached,
            prompt_seconds=self.prompt_seconds,
            tokens=self.tokens,
            rounds=self.lengths.total(),
            drafted=self.drafted.total(),
            accepted=self.accepted.total(),
            seconds=self.seconds,
            engine_seconds=self.engine_seconds,
            plain_tokens_per_second=self.tokens / plain if plain else None,
            plain_error=self.baseline.error(self.seconds) if plain else 0.0,
            by_drafter={name: (n, self.accepted[name]) for name, n in sorted(self.drafted.items())},
            k_histogram=dict(sorted(self.lengths.items())),
            by_depth=tuple(
                (_at_least(depth, self.tried), _at_least(depth, self.reached))
                for depth in range(1, max(self.tried, default=0) + 1)
            ),
        )


def _at_least(depth: int, rounds: Counter[int]) -> int:
    return sum(n for deep, n in rounds.items() if deep >= depth)
