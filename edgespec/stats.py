"""Statistics of an answer."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from .baseline import Baseline
from .types import Round

_ENOUGH = 30  # tokens from which on a speedup is stated: fewer take too little time to compare two speeds


@dataclass(frozen=True, slots=True)
class Stats:
    """The statistics of one answer. Times are wall-clock seconds.

    Args:
        prompt: tokens of the prompt.
        cached: of these, tokens that the KV cache held already.
        prompt_seconds: time to compute the rest of the prompt.
        tokens: tokens committed in rounds.
        rounds: passes of the target.
        drafted: tokens drafted.
        accepted: of these, tokens accepted.
        seconds: time of all rounds, without the prompt and without the time that the reader of the events took.
        engine_seconds: of these, time inside the engines: passes of the target, drafting, learning of drafters.
        plain_tokens_per_second: estimated speed of plain decoding for the same tokens at the same time (see
            `Baseline`); None if it is not known.
        plain_error: relative standard error of `speedup`, estimated from the spread of the times of passes. It is large
            if other programs were busy: then a few stalls determine the result.
        by_drafter: drafted and accepted tokens by the name of the drafter.
        k_histogram: number of rounds by the number of tokens drafted.
        by_depth: for each depth in a draft from 1 on, how often a token of that depth was tested, all tokens before it
            being accepted, and how often it was accepted.
        reasoning_tokens: of `tokens`, those of the model's reasoning and its markers; 0 if it was not separated.
        passengers: tokens that passes computed for a drafter beside drafts, and that were not verified.
    """

    prompt: int
    cached: int
    prompt_seconds: float
    tokens: int
    rounds: int
    drafted: int
    accepted: int
    seconds: float
    engine_seconds: float
    plain_tokens_per_second: float | None
    plain_error: float
    by_drafter: dict[str, tuple[int, int]]
    k_histogram: dict[int, int]
    by_depth: tuple[tuple[int, int], ...]
    reasoning_tokens: int = 0
    passengers: int = 0

    @property
    def tokens_per_second(self) -> float:
        """`tokens` divided by `seconds`; 0 without rounds."""
        return self.tokens / self.seconds if self.seconds else 0.0

    @property
    def mean_accepted_length(self) -> float:
        """Tokens committed per pass of the target."""
        return self.tokens / self.rounds if self.rounds else 0.0

    @property
    def acceptance_rate(self) -> float:
        """The share of drafted tokens that was accepted, from 0 to 1; 0 if none was drafted."""
        return self.accepted / self.drafted if self.drafted else 0.0

    def of_drafter(self, name: str) -> tuple[int, int]:
        """Drafted and accepted tokens of a drafter, those included on which others agreed with it."""
        counts = [counts for names, counts in self.by_drafter.items() if name in names.split("+")]
        return sum(drafted for drafted, _ in counts), sum(accepted for _, accepted in counts)

    @property
    def speedup(self) -> float | None:
        """The speedup over plain decoding: exactly 1 if nothing was drafted, None for fewer than 30 tokens."""
        plain = self.plain_tokens_per_second
        return self.tokens_per_second / plain if plain and self.tokens >= _ENOUGH else None


@dataclass
class Tally:
    """Counts the statistics of an answer while it is computed."""

    prompt: int
    cached: int
    prompt_seconds: float = 0.0
    tokens: int = 0
    reasoning_tokens: int = 0
    seconds: float = 0.0
    engine_seconds: float = 0.0
    drafted: Counter[str] = field(default_factory=Counter)
    accepted: Counter[str] = field(default_factory=Counter)
    lengths: Counter[int] = field(default_factory=Counter)
    passengers: int = 0
    #: Number of rounds by the greatest depth tested, and by the greatest depth accepted.
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
        """Count a round. The arguments are those of `Baseline.add`."""
        self.baseline.add(round, seconds, speculating, price, plain_price)
        self.tokens += len(round.tokens)
        self.seconds += seconds
        self.engine_seconds += round.verify_seconds + round.draft_seconds
        self.lengths[len(round.draft)] += 1
        self.passengers += len(round.draft.passengers.tokens)
        if round.draft:
            self.drafted.update(round.draft.drafters)
            self.accepted.update(round.draft.drafters[node] for node in round.path)
            depth = len(round.path)
            self.reached[depth] += 1
            self.tried[depth + ((round.path[-1] if depth else -1) in round.draft.parents)] += 1

    def stats(self) -> Stats:
        """The statistics of the rounds so far."""
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
            reasoning_tokens=self.reasoning_tokens,
            passengers=self.passengers,
        )


def _at_least(depth: int, rounds: Counter[int]) -> int:
    return sum(n for deep, n in rounds.items() if deep >= depth)
