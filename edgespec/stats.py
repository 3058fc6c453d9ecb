"""What a generation brought, in figures."""

from __future__ import annotations

import statistics
from collections import Counter
from dataclasses import dataclass, field

from .types import Round

_ENOUGH = 3  # plain steps that say more of their price than what was known before


@dataclass(frozen=True, slots=True)
class Stats:
    """The figures of one generation.

    Seconds are spent in rounds, without the prompt and without the time the reader of the events took.
    `plain_tokens_per_second` is what plain decoding reaches here: by the plain steps of this very generation where
    there were some, else by the price of one, as measured and since corrected. `speedup` is over that, None where
    neither is known.
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
    #: Drafted and accepted tokens by drafter.
    by_drafter: dict[str, tuple[int, int]]
    #: Rounds by the number of tokens drafted.
    k_histogram: dict[int, int]
    #: By depth in a draft, from its first token on: how often a token there was tried, all before it being accepted,
    #: and how often it was accepted.
    by_depth: tuple[tuple[int, int], ...]

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.seconds if self.seconds else 0.0

    @property
    def mean_accepted_length(self) -> float:
        """Tokens committed per pass of the target."""
        return self.tokens / self.rounds if self.rounds else 0.0

    @property
    def acceptance_rate(self) -> float:
        return self.accepted / self.drafted if self.drafted else 0.0

    @property
    def speedup(self) -> float | None:
        plain = self.plain_tokens_per_second
        return self.tokens_per_second / plain if plain and self.tokens else None


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
    plain: list[float] = field(default_factory=list)

    def add(self, round: Round, seconds: float) -> None:  # noqa: A002
        """Count a round that took `seconds` in all."""
        self.tokens += len(round.tokens)
        self.seconds += seconds
        self.engine_seconds += round.verify_seconds + round.draft_seconds
        self.lengths[len(round.draft)] += 1
        if round.width == 1:
            self.plain.append(seconds - round.draft_seconds)
        if round.draft:
            self.drafted.update(round.draft.drafters)
            self.accepted.update(round.draft.drafters[node] for node in round.path)
            depth = len(round.path)
            self.reached[depth] += 1
            self.tried[depth + ((round.path[-1] if depth else -1) in round.draft.parents)] += 1

    def stats(self, plain_seconds: float | None) -> Stats:
        """The figures now; `plain_seconds` is the price of a plain step."""
        if len(self.plain) >= _ENOUGH:
            plain_seconds = statistics.median(self.plain)
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
            plain_tokens_per_second=1 / plain_seconds if plain_seconds else None,
            by_drafter={name: (n, self.accepted[name]) for name, n in sorted(self.drafted.items())},
            k_histogram=dict(sorted(self.lengths.items())),
            by_depth=tuple(
                (_at_least(depth, self.tried), _at_least(depth, self.reached))
                for depth in range(1, max(self.tried, default=0) + 1)
            ),
        )


def _at_least(depth: int, rounds: Counter[int]) -> int:
    return sum(n for deep, n in rounds.items() if deep >= depth)
