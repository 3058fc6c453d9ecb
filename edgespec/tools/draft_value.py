"""The value of a draft model for its target on this machine: the acceptance rate by depth, measured, and the speedups
that follow at the prices of passes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ..engine import Finished
from ..errors import Interrupted
from ..prices.draft_length import Best, best, break_even, ceiling, committed
from ..runtime.runtime import Runtime
from ..sampling import Sampling
from .tuning import plausible

DEPTH = 8  #: tokens of each draft while acceptance is measured
ENOUGH = 20  # tested tokens of a depth from which on its acceptance rate is used


@dataclass(frozen=True, slots=True)
class DraftValue:
    """Measured acceptance and prices.

    Args:
        depths: for each depth from 1 on, the tokens tested and accepted; a token is tested if all before it were
            accepted.
        curve: seconds of a pass over 1, 2, ... tokens.
        step: seconds per drafted token.
        tokens: tokens generated for the measurement.
    """

    depths: tuple[tuple[int, int], ...]
    curve: tuple[float, ...]
    step: float
    tokens: int = 0

    @property
    def acceptance(self) -> tuple[float, ...]:
        """The acceptance rate by depth, for depths with enough tested tokens; empty if there are none."""
        return tuple(accepted / tried for tried, accepted in self.depths if tried >= ENOUGH)

    @property
    def known(self) -> bool:
        """Whether there are enough tested tokens, and the prices are plausible."""
        return bool(self.acceptance) and plausible(self.curve)

    @property
    def best(self) -> Best:
        """The best draft length at this acceptance, and its speedup."""
        return best(self.curve, self.step, self.acceptance or 0.0)

    @property
    def ceiling(self) -> Best:
        """The same if every token were accepted."""
        return ceiling(self.curve, self.step)

    @property
    def break_even(self) -> float | None:
        """The least acceptance rate with a speedup above 1; None if there is none."""
        return break_even(self.curve, self.step)

    def length(self, k: int) -> float:
        """The mean accepted length of drafts of `k` tokens: tokens committed per pass of the target."""
        return committed(self.acceptance or 0.0, k)

    def with_depths(self, depths: Sequence[tuple[int, int]], tokens: int) -> DraftValue:
        """The sum of this and the measurements of another text of `tokens` tokens."""
        longest = max(len(self.depths), len(depths))
        padded = [[*rows, *[(0, 0)] * (longest - len(rows))] for rows in (self.depths, depths)]
        total = tuple((a + c, b + d) for (a, b), (c, d) in zip(*padded, strict=True))
        return DraftValue(total, self.curve, self.step, self.tokens + tokens)


def measure_draft(
    runtime: Runtime, prompts: Sequence[Sequence[int]], sampling: Sampling, max_tokens: int
) -> Iterator[DraftValue]:
    """Answer `prompts` (tokens) with the runtime's speculation; yields the value after each of them.

    Prices are those at the beginning, which were measured for all widths.

    Raises:
        Interrupted: an answer was cancelled.
    """
    value = DraftValue((), tuple(runtime.prices.curve()), max(runtime.step_prices[name] for name in runtime.drafters))
    for prompt in prompts:
        *_, last = runtime.complete(prompt, sampling, max_tokens=max_tokens)
        if not isinstance(last, Finished) or last.reason == "cancelled":
            raise Interrupted  # a part of an answer would bias the sample
        value = value.with_depths(last.stats.by_depth, last.stats.tokens)
        yield value
