"""What plain decoding would have taken for the tokens of one generation, estimated while it speculates."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from .types import Round

_PRIOR = 4.0  # plain rounds that the price of a plain pass counts for beside those of the generation
_STALL = 3.0  # times its price; what a pass takes beyond is a stall: other programs had the cores
_ENOUGH = 3  # plain rounds that say what one takes where no price is known


@dataclass
class _Stalls:
    """The passes of a generation: the time in stalls beside the rest, and how much passes vary.

    A stall strikes any pass, and how long it lasts has nothing to do with the width, so plain and wide passes are
    counted together: a generation has few plain passes, and a few stalls make up half of its time on a busy machine.
    The longest is not expected of the other passes: one alone may be the machine asleep.
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
        """The time of passes over that without stalls."""
        return 1 + (self._stalled - self._longest) / self._others if self._others else 1.0

    @property
    def variance(self) -> float:
        """Of one pass's seconds over its price, relative to the square of the mean."""
        if not self._sum:
            return 0.0
        mean = self._sum / self.passes
        return max(0.0, self._squares / self.passes / mean**2 - 1)


@dataclass
class Baseline:
    """Seconds of plain decoding for the same tokens, on the same clock.

    A plain round counts as what it took, less what speculation took of it. Each token of a drafted round counts as a
    plain pass at its price at that time, corrected by how far the plain passes of this generation were from theirs
    without stalls, inflated by the stalls of all its passes, and as what a round takes beside its pass.
    """

    _plain_rounds: int = 0
    _plain_seconds: float = 0.0  # of plain rounds, without drafting
    _plain_rest: float = 0.0  # of these, outside the pass, each at most the price of one
    _plain_passes: float = 0.0  # inside it, without stalls
    _plain_prices: float = 0.0
    _drafted_rounds: int = 0
    _drafted_seconds: float = 0.0
    _tokens: int = 0  # of drafted rounds
    _prices: float | None = 0.0  # of as many plain passes; None once a price was not known
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
            seconds: what it took in all.
            speculating: seconds of it that plain decoding would not have spent beside the pass.
            price: seconds of its pass as estimated before it; None where that is not known.
            plain_price: the same of a plain pass.
        """
        rest = seconds - speculating - round.verify_seconds
        if price is not None:
            self._stalls.add(round.verify_seconds, price)
        if round.draft:
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
        """Seconds of plain decoding; None where nothing says what a plain pass takes."""
        if not self._tokens:
            return self._plain_seconds
        if self._prices is not None:
            return self._plain_seconds + self._drafted(self._prices)
        if self._plain_rounds >= _ENOUGH:
            return self._plain_seconds * (1 + self._tokens / self._plain_rounds)
        return None

    def error(self, seconds: float) -> float:
        """The relative standard error of the speedup that follows for a generation of `seconds`, as far as the spread
        of its passes tells; 0 where nothing was drafted, for that is plain decoding."""
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
