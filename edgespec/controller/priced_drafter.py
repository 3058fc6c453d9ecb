"""A drafter whose guesses take time: what asking it costs and brings, and when it is probed."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import accumulate

from ..drafters import Drafter, block_prices_of, held_by, plan, reading_price_of
from ..prices import RunningPrice
from ..types import Guess
from ..verify import RoundContext
from .calibration import LATELY, Ahead
from .draft_tree import Trial
from .reading import Reading

# Share of the time that may go into probing drafters that are not worth asking, all together. 1% to 3% bring the same
# means (simulated); with less than 2% a drafter that became the better one is noticed late (docs/controller.md).
_PROBING = 0.02
_DOUBT = 3.0  # times asked for nothing that a drafter not yet known begins with
# Rounds at first in which each of several is asked. In dialogues with llama.cpp's q8_0 all drafters together were .93
# and .97 of the best one without (two runs), as probes had not found that one after 450 tokens, and .99 with 4 or 8.
_TRIALS = 4
# Tokens read with a first guess up to which it teaches the price of a guess, and beyond which that of a token.
_ALMOST_NONE = 3
_PATIENCE = (4, 64)  # rounds between probes that miss: at first, and at most


class PricedDrafter:
    """A drafter with a price, and its record.

    `ahead` is what is expected of its guesses. The first pass of a round is dearer than those after it: the drafter
    finds the caches full of the target's weights, and reads what was committed since it was asked last. After many
    tokens, and in another prompt, that is a text to read (`Reading`). A pass makes one guess, or guesses at several
    depths (`BlockDrafter`).

    Args:
        others: drafters with a price beside it, which share the time for probes.
    """

    def __init__(self, drafter: Drafter, ahead: Ahead, clock: Callable[[], float], others: int = 0) -> None:
        self.drafter = drafter
        self.ahead = ahead
        prices = block_prices_of(drafter)
        #: Seconds of a pass that makes one guess: of the first pass of a round, and of one after it.
        self.first, self.later = RunningPrice(prices[0]), RunningPrice(prices[0])
        #: Seconds by which the first pass takes longer for each of the few tokens that it reads beside the last one.
        self.token = RunningPrice(reading_price_of(drafter))
        self.reading = Reading(reading_price_of(drafter), lambda context: held_by(drafter, context), ahead)
        self._few = 0  # of these tokens in this round
        self._is_text = False  # whether there are more, which are read as a text
        self._to_read = 0  # tokens that the first pass of this round reads beyond a few
        #: Seconds of this round that its first pass took to read, without hiccups.
        self.reading_seconds = 0.0
        self._caught_up = 0.0  # the same with hiccups
        self._trials = _TRIALS if others else 0
        # Of a pass that makes at least 1, 2, ... guesses, relative to those: a wider pass may be the cheaper one.
        cheapest = [*accumulate(reversed(prices), min)][::-1]
        self._shape = [price / cheapest[0] if cheapest[0] else 1.0 for price in cheapest]
        #: Guesses of this round, and the seconds they took.
        self.guesses = 0
        self.seconds = 0.0
        self._until = 0  # the depth up to which the passes of this round make guesses
        self._to_begin: RoundContext | None = None  # the round that the drafter has not begun yet
        self._clock = clock
        self._probing = _PROBING / (1 + others)
        self._left_alone = 0
        self._patience = 1
        self._brought = 0.0
        self._times = _DOUBT

    @property
    def name(self) -> str:
        return self.drafter.name

    @property
    def worth(self) -> float:
        """What asking brought of late, in tokens beyond what was in hand and less what it took.

        More than averages promise, where the drafter knows when it is right: doubtful drafts are declined in time.
        """
        return self.ahead.worth.given(self._brought / self._times)

    @property
    def is_new(self) -> bool:
        """Whether it was asked too seldom to be judged."""
        return self._trials > 0

    @property
    def steady_seconds(self) -> float:
        """What its guesses of this round took, without what it had to read."""
        return self.seconds - self._caught_up

    def due(self, plain: float, reading: float = 0.0) -> bool:
        """Whether it is time for a probe; probes take a small share of the time at the most.

        Args:
            plain: seconds that are worth a token.
            reading: seconds that it would read now.
        """
        seconds = self.first.seconds + self._few * self.token.seconds + reading
        return self._left_alone >= max(self._patience, seconds / (self._probing * plain))

    @property
    def credit(self) -> float:
        """Plain steps that asking it instead of another drafter may cost now."""
        return self._probing * self._left_alone

    def forget_round(self) -> None:
        """A round in which it was not asked so far."""
        self.guesses, self.seconds, self._until, self._to_begin = 0, 0.0, 0, None
        self.reading_seconds = self._caught_up = 0.0

    def expect(self, context: Sequence[int]) -> None:
        """Its first guess of this round would follow `context`: what it has to read is a part of the price."""
        self._few = self.reading.few(context)
        self._is_text = self.reading.is_text(context)

    def begin(self, round_context: RoundContext) -> None:
        """Begin a round in which it may be asked. The drafter itself begins with its first guess: until then it need
        not read what was committed."""
        self.forget_round()
        self._to_begin = round_context

    def has_guessed(self, depth: int) -> bool:
        """Whether a pass of this round makes the guesses at `depth`, which cost nothing then."""
        return depth < self._until

    def price(self, depth: int, count: int) -> float:
        """Seconds of the passes still needed for `count` guesses from `depth` on."""
        needed = count - max(0, self._until - depth)
        if needed <= 0:
            return 0.0
        whole, rest = divmod(needed - 1, len(self._shape))
        seconds = self.later.seconds * (whole * self._shape[-1] + self._shape[rest])
        if not self.guesses:
            seconds += (self.first.seconds - self.later.seconds) * (self._shape[-1] if whole else self._shape[rest])
            seconds += 0.0 if self._is_text else self._few * self.token.seconds
        return seconds

    def guess(self, path: Sequence[int], most: int, ahead: int = 1) -> Sequence[Guess]:
        """What follows `path`, see `Drafter.guess`; the time it takes is its price from now on.

        Args:
            ahead: depths that a pass should make guesses at, if one is needed.
        """
        started = self._clock()
        if self._to_begin is not None:
            self.drafter.begin(self._to_begin)
            self._to_read = self.reading.read(self._to_begin.tokens)
            self._to_begin = None
        planned = 0
        if not self.has_guessed(len(path)):
            # Of passes that take equally long, the one with the most guesses.
            planned = bisect_right(self._shape, self._shape[min(ahead, len(self._shape)) - 1])
            if len(self._shape) > 1:
                plan(self.drafter, planned)
        guesses = self.drafter.guess(path, most)
        took = self._clock() - started
        if planned:
            self._learn_price(took, planned, empty=not guesses)
            self._until = len(path) + planned
        self.guesses += 1
        self.seconds += took
        return guesses

    def asked(self, brought: float) -> None:
        """It was asked in this round, which brought so many tokens more than it took."""
        self._brought = LATELY * self._brought + brought
        self._times = LATELY * self._times + 1
        self.ahead.worth.add(brought)
        self._left_alone = -1
        self._trials -= self._trials > 0

    def observe(self, trials: Sequence[Trial]) -> None:
        """A round is over; `trials` are its likeliest guesses, as far as they were tried."""
        self._left_alone += 1
        if len(self._shape) == 1 and self.guesses:
            right = next((n for n, trial in enumerate(trials) if not trial.hit), len(trials))
            self.reading.keep(min(right, self.guesses - 1))
        self.learn(trials)
        if trials:
            self._patience = 1 if trials[0].hit else min(max(2 * self._patience, _PATIENCE[0]), _PATIENCE[1])

    def learn(self, trials: Sequence[Trial]) -> None:
        """Learn from guesses that were tried, the likeliest of each place."""
        for trial in trials:
            (self.ahead.later if trial.depth else self.ahead.first).add(trial.hit)

    def _learn_price(self, took: float, planned: int, *, empty: bool) -> None:
        """A pass took so many seconds."""
        if not self.guesses:
            seconds = took / self._shape[planned - 1]
            if self._to_read:
                self._caught_up = max(0.0, took - self.first.seconds * self._shape[planned - 1])
                self.reading_seconds = self.reading.observe(self._to_read, self._caught_up)
            elif self._few > _ALMOST_NONE:
                self.token.observe(max(0.0, took - self.first.seconds * self._shape[planned - 1]) / self._few)
            else:
                # While the price of a token is not known yet, it may be too high: half of the time was the guess's own.
                catching_up = self._few * self.token.seconds
                self.first.observe(max(seconds / 2, (took - catching_up) / self._shape[planned - 1]))
        elif not (empty and len(self._shape) > 1):  # a block may be all that it can guess, and no pass was made
            self.later.observe(took / self._shape[planned - 1])
