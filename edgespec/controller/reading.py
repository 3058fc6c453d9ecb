"""What a drafter reads before its first guess: the tokens committed since it was asked last, or another prompt."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..backends import common_prefix
from ..prices import RunningPrice
from .calibration import Ahead

_FEW = 16  # tokens that a round commits at most: the first guess after it pays for those
_LATELY = 0.7  # of the number of rounds in which a drafter is asked after it has read, each time
_HICCUP = 3.0  # times what was expected, for which a reading counts at most


class Reading:
    """How far a drafter has read, and what reading takes.

    Reading a text is an expense for all rounds after it: it is worth its time if the guesses of those rounds are, and
    says nothing of the price of a guess. The few tokens of the last rounds are read with the first guess, which is
    dearer for them.

    Args:
        token: seconds that a token should take to read.
        ahead: what is known of the drafter, also of earlier runs.
        held: how many tokens at the beginning of a context the drafter holds, as far as it says (`HoldingDrafter`).
            By default, or if None, what it has in common with the context of the answer before.
    """

    def __init__(
        self,
        token: float,
        held: Callable[[Sequence[int]], int | None] = lambda _context: None,
        ahead: Ahead | None = None,
    ) -> None:
        self._token = RunningPrice(token)
        self._ahead = ahead or Ahead()
        self._held = held
        self._context: Sequence[int] = ()  # that of the answer in which it was asked last
        self._length = 0  # of that, tokens that it has read
        self._keeps = False  # whether it says what it holds: then its own guesses, too
        self._prompt = 0  # tokens of the context when the answer began
        self._since = 0  # rounds in which it was asked since it read

    def tokens(self, context: Sequence[int]) -> int:
        """Tokens of `context` that it has not read."""
        if context is not self._context:
            held = self._held(context)
            self._keeps = held is not None
            self._length = common_prefix(self._context[: self._length], context) if held is None else held
            self._context, self._prompt = context, len(context)
        return len(context) - self._length

    def few(self, context: Sequence[int]) -> int:
        """Tokens that a first guess reads beside the last one, a few at most."""
        return max(0, min(self.tokens(context) - 1, _FEW))

    def is_text(self, context: Sequence[int]) -> bool:
        """Whether it has more than a few tokens to read."""
        return self.tokens(context) > _FEW

    def keep(self, guesses: int) -> None:
        """So many guesses of its own, which it has read, were committed."""
        if self._keeps:
            self._length += guesses

    def expected(self, context: Sequence[int]) -> float:
        """Seconds that it takes to read what is new in `context`, beyond those of a first guess."""
        return self._seconds(self.tokens(context))

    def expected_of_prompt(self, context: Sequence[int]) -> float:
        """The same without what was committed in this answer.

        That grows with every round, as fast as the time that probes may take. If it counted for probes, a drafter that
        was left alone for long would not be probed again.
        """
        committed = len(context) - self._prompt
        return self._seconds(self.tokens(context) - committed)

    def share(self, seconds: float) -> float:
        """Of what reading takes, the share of each round in which the drafter is then asked."""
        return seconds / self._ahead.rounds

    def read(self, context: Sequence[int]) -> int:
        """It reads what is new in `context` now: how many tokens, or 0 where the first guess pays for that."""
        tokens = self.tokens(context)
        self._length = len(context)
        if tokens > _FEW:
            if self._since:
                self._ahead.rounds += (1 - _LATELY) * (self._since - self._ahead.rounds)
            self._since = 0
        self._since += 1
        return tokens if tokens > _FEW else 0

    def observe(self, tokens: int, seconds: float) -> float:
        """Reading so many tokens took so long; return what of that was no hiccup of the machine."""
        expected = tokens * self._token.seconds
        self._token.observe(seconds / tokens)
        return min(seconds, _HICCUP * expected)

    def _seconds(self, tokens: int) -> float:
        return tokens * self._token.seconds if tokens > _FEW else 0.0
