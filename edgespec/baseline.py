"""The time that plain decoding would have taken for the tokens of one answer, estimated while it speculates."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from .types import Round

_PRIOR = 4.0  # weight of the measured price of a plain pass, in plain rounds of the answer
_STALL = 3.0  # the time of a pass beyond this multiple of its price is a stall: other programs used the cores
_ENOUGH = 3  # plain rounds from which the time of one is estimated if no price is known


@dataclass
class _Stalls:
    """Stalls of the passes of an answer, and the variance of their times.

    A stall may hit any pass, and its length does not depend on the width, so plain and wide passes are counted
    together: an answer has few plain passes, and on a busy machine a few stalls make up half of its time. The longest
    stall is left out of the estimate: a single one may be the machine asleep.
    """

    passes: int = 0
    _stalled: float = 0.0  # seconds
    _longest: float = 0.0  # of these
    _others: float = 0.0  # seconds of passes without stalls
    _sum: float = 0.0  # of seconds over price
    _squares: float = 0.0

    def add(self, seconds: float, price: float) -> None:
        stall = max(0.0, seconds - _STALL * price)
        self._stalled += stall
        self._longest = max(self._longest, stall)
        self._others += seconds - stall
        self.passes += 1
        self._sum += seconds / price
        self._squares += (seconds / price) ** 2

    @property
    def inflation(self) -> float:
        """The ratio of the time of passes with stalls to that without."""
        return 1 + (self._stalled - self._longest) / self._others if self._others else 1.0

    @property
    def variance(self) -> float:
        """The variance of the ratio of a pass's seconds to its price, divided by the square of its mean."""
        if not self._sum:
            return 0.0
        mean = self._sum / self.passes
        return max(0.0, self._squares / self.passes / mean**2 - 1)


@dataclass
class Baseline:
    """Seconds that plain decoding would have taken for the same tokens on the same clock.

    A plain round counts with its own time, less the time that speculation took. Each token of a round with a wider pass
    counts with the price of a plain pass at that time and with the overhead of a round outside its pass. The prices are
    multiplied by the ratio of measured to expected times of this answer's plain passes (without stalls) and by the
    inflation by stalls of all its passes.
    """

    _plain_rounds: int = 0
    _plain_seconds: float = 0.0  # of plain rounds, without drafting
    _plain_rest: float = 0.0  # of these, outside the pass, in each round at most the price of a pass
    _plain_passes: float = 0.0  # of these, inside the pass, without stalls
    _plain_prices: float = 0.0
    _drafted_rounds: int = 0
    _drafted_seconds: float = 0.0
    _tokens: int = 0  # of drafted rounds
    _prices: float | None = 0.0  # of one plain pass per token of drafted rounds; None if a price was not known
    _rest: float = 0.0  # of drafted rounds, outside pass and drafting
    _stalls: _Stalls = field(default_factory=_Stalls)

    def add(
        self,
        round: Round,  # noqa: A002
        seconds: float,
        speculating: float,
        price: float | None,
        plain_price: float | None,
    ) -> None:
        """Count a round.

        Args:
            seconds: the time of the round.
            speculating: of these, seconds outside the pass that plain decoding would not have spent.
            price: the expected seconds of its pass; None if not known.
            plain_price: the expected seconds of a plain pass.
        """
        rest = seconds - speculating - round.verify_seconds
        if price is not None:
            self._stalls.add(round.verify_seconds, price)
        if round.width > 1:  # a draft, passengers, or tokens owed because of earlier drafts
            self._drafted_rounds += 1
            self._drafted_seconds += seconds
            self._tokens += len(round.tokens)
            self._rest += rest
            if self._prices is not None:
                self._prices = None if plain_price is None else self._prices + plain_price * len(round.tokens)
            return
        self._plain_rounds += 1
        self._plain_seconds += seconds - speculating
        self._plain_rest += rest if plain_price is None else min(rest, plain_price)
        if plain_price is not None:
            self._plain_passes += min(round.verify_seconds, _STALL * plain_price)
            self._plain_prices += plain_price

    @property
    def seconds(self) -> float | None:
        """Seconds of plain decoding; None if the time of a plain pass is not known."""
        if not self._tokens:
            return self._plain_seconds
        if self._prices is not None:
            return self._plain_seconds + self._drafted(self._prices)
        if self._plain_rounds >= _ENOUGH:
            return self._plain_seconds * (1 + self._tokens / self._plain_rounds)
        return None

    def error(self, seconds: float) -> float:
        """The relative standard error of the speedup of an answer that took `seconds`, from the spread of the times of
        its passes; 0 if nothing was drafted, because then the answer was plain decoding."""
        if not self._tokens or self._prices is None or not self._stalls.passes:
            return 0.0
        drafted = self._drafted(self._prices)
        estimated = (drafted / (drafted + self._plain_seconds)) ** 2 / self._stalls.passes
        measured = (self._drafted_seconds / seconds) ** 2 / self._drafted_rounds
        return math.sqrt(self._stalls.variance * (estimated + measured))

    def _drafted(self, prices: float) -> float:
        """Seconds of plain decoding for the tokens of drafted rounds."""
        prior = _PRIOR * prices / self._tokens
        correction = (self._plain_passes + prior) / (self._plain_prices + prior)
        return prices * correction * self._stalls.inflation + self._tokens * self._overhead

    @property
    def _overhead(self) -> float:
        """Seconds of a plain round outside its pass."""
        if self._plain_rounds:
            return self._plain_rest / self._plain_rounds
        return self._rest / self._tokens
