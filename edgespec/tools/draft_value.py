"""What a draft is worth to its target here: how often its tokens are accepted at each depth, measured, and what follows
at the prices of this machine."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ..engine import Finished
from ..errors import Interrupted
from ..runtime.runtime import Runtime
from ..sampling import Sampling
from .tuning import Best, best, break_even, ceiling, committed, plausible

DEPTH = 8  #: tokens of each draft by which acceptance is measured
ENOUGH = 20  # tries that say something of a depth


@dataclass(frozen=True, slots=True)
class Worth:
    """What was measured.

    Args:
        depths: how often a token was tried and accepted, by depth from 1; tried is one whose forerunners were accepted.
        curve: seconds of a pass over 1, 2, ... tokens.
        step: seconds that drafting a token takes.
        tokens: how many were said meanwhile.
    """

    depths: tuple[tuple[int, int], ...]
    curve: tuple[float, ...]
    step: float
    tokens: int = 0

    @property
    def acceptance(self) -> tuple[float, ...]:
        """The share accepted by depth, as deep as tries are many enough; empty where they nowhere are."""
        return tuple(accepted / tried for tried, accepted in self.depths if tried >= ENOUGH)

    @property
    def known(self) -> bool:
        """Whether what follows can be said: there are tries enough, and the prices can be true."""
        return bool(self.acceptance) and plausible(self.curve)

    @property
    def best(self) -> Best:
        """The draft length that pays best at this acceptance, and its speedup."""
        return best(self.curve, self.step, self.acceptance or 0.0)

    @property
    def ceiling(self) -> Best:
        """The same if every token were right."""
        return ceiling(self.curve, self.step)

    @property
    def break_even(self) -> float | None:
        """The least acceptance that pays; None where none does."""
        return break_even(self.curve, self.step)

    def length(self, k: int) -> float:
        """The mean accepted length of drafts of `k` tokens: what a pass of the target commits."""
        return committed(self.acceptance or 0.0, k)

    def with_depths(self, depths: Sequence[tuple[int, int]], tokens: int) -> Worth:
        """This, and what another text showed."""
        longest = max(len(self.depths), len(depths))
        padded = [[*rows, *[(0, 0)] * (longest - len(rows))] for rows in (self.depths, depths)]
        total = tuple((a + c, b + d) for (a, b), (c, d) in zip(*padded, strict=True))
        return Worth(total, self.curve, self.step, self.tokens + tokens)


def weigh(runtime: Runtime, prompts: Sequence[Sequence[int]], sampling: Sampling, max_tokens: int) -> Iterator[Worth]:
    """Answer `prompts` (tokens) as the runtime speculates; yields what is known after each of them.

    Prices are those at the beginning: of passes of all widths, not only of those that are made here.

    Raises:
        Interrupted: an answer was cancelled.
    """
    worth = Worth((), tuple(runtime.prices.curve()), max(runtime.step_prices[name] for name in runtime.drafters))
    for prompt in prompts:
        *_, last = runtime.complete(prompt, sampling, max_tokens=max_tokens)
        if not isinstance(last, Finished) or last.reason == "cancelled":
            raise Interrupted  # half an answer is another sample than whole ones
        worth = worth.with_depths(last.stats.by_depth, last.stats.tokens)
        yield worth
