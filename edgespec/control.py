"""Which draft to buy. Speculation is a purchase: a draft of n tokens costs its drafting and a wider pass, and pays
back the tokens expected to be accepted.

A round over n drafted tokens commits `1 + a_1 + ... + a_n` tokens, where `a_j` is the chance that token j and all
before it are accepted, and takes `price(1 + n)` and the drafting. To maximise tokens per second over many rounds is
a renewal-reward problem: with `rate` the best reachable rate, every round should maximise tokens - rate * seconds
(Dinkelbach 1967). An empty draft is always a candidate, so a slower round than a plain one is never planned.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from .calibration import Calibration
from .drafters import Drafter
from .errors import OptionError
from .prices import WIDTHS, Prices
from .types import Asked, Draft, Floats, Round
from .verify import Drawing, Drawn

_PLAIN_EVERY = 64  # rounds after which a plain step is measured, if none was bought meanwhile
_FREE = 0.01  # a drafter that costs less than this share of a plain step is asked without weighing
_PROBING = 0.03  # share of the time that may go into probing one silenced drafter
_INTRODUCTION = 3  # tokens of a drafter's first draft
_PATIENCE = (8, 256)  # rounds a silenced drafter is left alone: at first, and at most


class Choice(NamedTuple):
    """What to verify in this round, and every drafter that was asked for it."""

    draft: Draft
    asked: tuple[Asked, ...]


class Controller(Protocol):
    """Says what to verify next."""

    @property
    def drafters(self) -> Sequence[Drafter]:
        """All it may ask; after each round they are told of it."""
        ...

    def choose(self, drawing: Drawing, limit: int) -> Choice:
        """A draft of at most `limit` tokens to follow `drawing.context`; an empty one is a plain step."""
        ...

    def observe(self, round: Round) -> None:  # noqa: A002
        """Learn from the round that was bought."""
        ...


class Fixed:
    """Always drafts `k` tokens, by the first drafter that has any: for comparison, and for those who know better.

    Raises:
        OptionError: a negative `k`.
    """

    def __init__(self, drafters: Sequence[Drafter], k: int) -> None:
        if k < 0:
            raise OptionError(f"k is {k}; it must be 0 (plain decoding) or more, or auto")
        self.drafters = tuple(drafters)
        self.k = k

    def choose(self, drawing: Drawing, limit: int) -> Choice:
        asked: list[Asked] = []
        for drafter in self.drafters if self.k and limit > 0 else ():
            asked.append(ask(drafter, drawing, _Always(drawing, min(self.k, limit))))
            if asked[-1].draft:
                return Choice(asked[-1].draft, tuple(asked))
        return Choice(Draft(), tuple(asked))

    def observe(self, round: Round) -> None:  # noqa: A002
        """It never changes its mind."""


class Adaptive:
    """Buys the draft that pays best at the prices measured and the acceptance seen.

    Drafters that cost nothing are asked first. Then the others, by expected gain, for as long as what one may bring
    is worth more than what is in hand. One that does not pay falls silent and is probed now and then: its token is
    compared with what the target says anyway and need not be bought. Each failed probe doubles the wait.
    """

    def __init__(self, drafters: Sequence[Drafter], prices: Prices, calibration: Calibration | None = None) -> None:
        self.drafters = tuple(drafters)
        self.prices = prices
        self.calibration = calibration or Calibration()
        self._tokens = 0.0
        self._seconds = 0.0
        self._since_plain = 0
        self._silence = {drafter.name: _Silence(drafter.step_price) for drafter in drafters}

    @property
    def rate(self) -> float:
        """Tokens per second that a round's time could earn otherwise: of late, and at least by plain decoding."""
        plain = 1 / self.prices.plain()
        return max(plain, self._tokens / self._seconds) if self._seconds else plain

    def choose(self, drawing: Drawing, limit: int) -> Choice:
        limit = min(limit, WIDTHS - 1)
        if limit < 1 or self._since_plain >= _PLAIN_EVERY:
            return Choice(Draft(), ())
        if (stranger := self._stranger()) is not None:
            introduced = ask(stranger, drawing, _Always(drawing, min(_INTRODUCTION, limit)))
            return Choice(introduced.draft, (introduced,))
        market = _Market(self.prices, self.calibration, self.rate, drawing.verifier.trims)
        asked: list[Asked] = []
        best, gain = Draft(), 0.0
        for drafter, step, hope in self._order(market, limit):
            silence = self._silence[drafter.name]
            terms: _Always | _Paying
            if 0 < hope <= gain:
                continue
            if hope <= 0 and not drawing.verifier.trims:
                terms = _Always(drawing, 1)
            else:
                terms = _Paying(drawing, limit, market, drafter.name, step)
            asked.append(ask(drafter, drawing, terms))
            candidate, value = market.best(asked[-1].draft)
            silence.learn(value - market.rate * step * terms.drawn)
            if candidate and (value > gain or not drawing.verifier.trims):
                best, gain = candidate, value
        return Choice(best, tuple(asked))

    def _stranger(self) -> Drafter | None:
        """A drafter with a price that was never asked. Its first draft is bought whatever is expected: nothing is
        known of it or of wider passes amid real text, and finding out costs less than two plain steps, once."""
        return next((d for d in self.drafters if d.step_price and self._silence[d.name].stranger), None)

    def observe(self, round: Round) -> None:  # noqa: A002
        self.calibration.observe(round, by_text=_by_text(round))
        self._since_plain = 0 if round.width == 1 else self._since_plain + 1
        self._tokens = 0.97 * self._tokens + len(round.tokens)
        self._seconds = 0.97 * self._seconds + round.verify_seconds + round.draft_seconds
        for asked in round.asked:
            self._silence[asked.draft.drafter].heard(asked, round.tokens)
        names = {asked.draft.drafter for asked in round.asked}
        for name, silence in self._silence.items():
            if name not in names:
                silence.rounds += 1

    def _order(self, market: _Market, limit: int) -> list[tuple[Drafter, float, float]]:
        """Drafters to consider, their step price, and what they may gain: 0 or less is a probe."""
        free: list[tuple[Drafter, float, float]] = []
        priced: list[tuple[Drafter, float, float]] = []
        for drafter in self.drafters:
            silence = self._silence[drafter.name]
            if silence.step < _FREE * self.prices.plain():
                free.append((drafter, silence.step, math.inf))
                continue
            hope = silence.worth(market.expected_gain(drafter.name, silence.step, limit))
            if hope > 0 or silence.over(self.prices.plain()):
                priced.append((drafter, silence.step, hope))
        priced.sort(key=lambda row: -row[2])
        return free + priced


class _Silence:
    """What asking one drafter costs and brings, and how long it has not been asked."""

    def __init__(self, step: float) -> None:
        self.step = step
        self.stranger = True
        self.rounds = 0
        self._patience = 1
        self._gained = 0.0
        self._asked = 0.0

    def over(self, plain: float) -> bool:
        """Whether it is time for a probe; probes take a small share of the time at the most."""
        return self.rounds >= max(self._patience, self.step / (_PROBING * plain))

    def worth(self, expected: float) -> float:
        """What asking is worth, in tokens: what is `expected`, shrunk towards what asking brought of late.

        Acceptance alone cannot tell. It is known of tokens that were drafted, and one whose drafts are seldom
        wanted would be asked, and paid for, for ever.
        """
        return (expected + self._gained) / (1 + self._asked)

    def learn(self, gained: float) -> None:
        """The drafter was asked; `gained` is what its draft may bring, less what drafting took."""
        self._gained = 0.95 * self._gained + gained
        self._asked = 0.95 * self._asked + 1

    def heard(self, asked: Asked, said: tuple[int, ...]) -> None:
        self.stranger = False
        if asked.steps:
            seconds = asked.seconds / asked.steps
            # A catch-up over a long prompt is no price of a step: surprises count up to half as much again.
            self.step += 0.1 * (min(seconds, 1.5 * self.step) - self.step) if self.step else seconds
        self.rounds = 0
        right = asked.draft.tokens[:1] == said[:1]
        self._patience = 1 if right else min(max(2 * self._patience, _PATIENCE[0]), _PATIENCE[1])


class _Market:
    """The prices of one round."""

    def __init__(self, prices: Prices, calibration: Calibration, rate: float, trims: bool) -> None:
        self.calibration = calibration
        self.rate = rate
        self.trims = trims
        plain = prices.plain()
        #: What a draft of n tokens must bring in expected tokens to be worth its wider pass.
        self.cost = [rate * (prices.price(1 + n) - plain) for n in range(WIDTHS)]

    def expected_gain(self, name: str, step: float, limit: int) -> float:
        """Expected tokens over a plain step, less the worth of the time, if `name` is asked; the best length's."""
        reach = 1.0
        total = gain = 0.0
        for n in range(1, limit + 1):
            reach *= self.calibration.expected(name, n - 1)
            total += reach
            gain = max(gain, total - self.cost[n] - self.rate * step * n)
        return gain

    def best(self, draft: Draft) -> tuple[Draft, float]:
        """The part of a proposed chain worth buying, and its gain over a plain step; drafting is spent already."""
        total, reach = 0.0, 1.0
        length, gain = 0, 0.0
        for n, confidence in enumerate(draft.confidence, 1):
            reach *= self.calibration.conditional(draft.drafter, confidence, n - 1)
            total += reach
            value = total - self.cost[n]
            if value > gain or (n == len(draft) and not self.trims):
                length, gain = n, value
        return draft.first(length), gain


class _Terms:
    """What all terms share: how to draw, and a count of draws."""

    def __init__(self, drawing: Drawing, limit: int) -> None:
        self.limit = limit
        self.ends = drawing.ends
        self.drawn = 0
        self._drawing = drawing

    def draw(self, row: Floats, drafted: Sequence[int]) -> Drawn:
        self.drawn += 1
        return self._drawing.draw(row, drafted)


class _Always(_Terms):
    """Draft to the limit."""

    def another(self, top: float) -> bool:  # noqa: ARG002
        return True


class _Paying(_Terms):
    """Draft on while some longer draft is expected to pay.

    The next token alone may not: prices are a staircase, and a wide pass is cheap only just before a step. So all
    longer drafts are weighed, by what the drafter's tokens are worth on the average at those depths.
    """

    def __init__(self, drawing: Drawing, limit: int, market: _Market, name: str, step: float) -> None:
        super().__init__(drawing, limit)
        self._market = market
        self._name = name
        self._step = market.rate * step
        self._reach = 1.0
        self._total = 0.0
        self._stop = 0.0  # the gain if drafting stopped here
        self._n = 0
        self._ahead = [market.calibration.expected(name, depth) for depth in range(limit)]

    def another(self, top: float) -> bool:
        if self._n >= self.limit:
            return False
        reach = self._reach * self._market.calibration.conditional(self._name, top, self._n)
        total = self._total + reach
        n = self._n + 1
        if self._best_from(n, reach, total) <= self._stop:
            # The token is there already. Where drafts may be cut it comes along, not to be bought but to learn
            # from: a drafter that thinks little of itself could never prove right otherwise.
            self._n = self.limit = n
            return self._market.trims
        here = total - self._market.cost[n]
        self._stop = max(self._stop, here) if self._market.trims else here
        self._reach, self._total, self._n = reach, total, n
        return True

    def _best_from(self, n: int, reach: float, total: float) -> float:
        """The best gain over all drafts that include token `n`; each further token costs a step of the drafter."""
        cost = self._market.cost
        best = total - cost[n]
        drafting = 0.0
        for m in range(n + 1, self.limit + 1):
            reach *= self._ahead[m - 1]
            total += reach
            drafting += self._step
            best = max(best, total - cost[m] - drafting)
        return best


def ask(drafter: Drafter, drawing: Drawing, terms: _Always | _Paying) -> Asked:
    """Let `drafter` propose, timed."""
    started = time.perf_counter()
    draft = drafter.propose(drawing.context, terms)
    seconds = time.perf_counter() - started
    return Asked(draft or Draft(drafter=drafter.name), terms.drawn, seconds)


def _by_text(round: Round) -> bool:  # noqa: A002
    """Drafts that carry the distribution they were drawn from are judged by it, not by equality."""
    return all(asked.draft.q is None for asked in round.asked)
