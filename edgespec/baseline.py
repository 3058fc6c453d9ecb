"""What plain decoding would have taken for the tokens of one generation, estimated while it speculates."""

from __future__ import annotations

from dataclasses import dataclass

from .types import Round

_PRIOR = 4.0  # plain rounds that the price of a plain pass counts for beside those of the generation
_HICCUP = 3.0  # times its price, what one pass counts for at most where others are judged by it
_ENOUGH = 3  # plain rounds that say what one takes where no price is known


@dataclass
class Baseline:
    """Seconds of plain decoding for the same tokens, on the same clock.

    A plain round counts as what it took, less what speculation took of it. Each token of a drafted round counts as a
    plain pass at its price at that time, corrected by how far the plain passes of this generation were from theirs,
    and as what a round takes beside its pass.
    """

    _plain_rounds: int = 0
    _plain_seconds: float = 0.0  # of plain rounds, without drafting
    _plain_rest: float = 0.0  # of these, outside the pass, each at most the price of one
    _plain_passes: float = 0.0  # inside it, each at most `_HICCUP` times its price
    _plain_prices: float = 0.0
    _tokens: int = 0  # of drafted rounds
    _prices: float | None = 0.0  # of as many plain passes; None once a price was not known
    _rest: float = 0.0  # of drafted rounds, outside pass and drafting

    def add(self, round: Round, seconds: float, speculating: float, price: float | None) -> None:  # noqa: A002
        """Count a round.

        Args:
            seconds: what it took in all.
            speculating: seconds of it that plain decoding would not have spent beside the pass.
            price: seconds of a plain pass at that time; None where it is not known.
        """
        rest = seconds - speculating - round.verify_seconds
        if round.draft:
            self._tokens += len(round.tokens)
            self._rest += rest
            if self._prices is not None:
                self._prices = None if price is None else self._prices + price * len(round.tokens)
            return
        self._plain_rounds += 1
        self._plain_seconds += seconds - speculating
        self._plain_rest += rest if price is None else min(rest, price)
        if price is not None:
            self._plain_passes += min(round.verify_seconds, _HICCUP * price)
            self._plain_prices += price

    @property
    def seconds(self) -> float | None:
        """Seconds of plain decoding; None where nothing says what a plain pass takes."""
        if not self._tokens:
            return self._plain_seconds
        if self._prices is not None:
            return self._plain_seconds + self._prices * self._correction(self._prices) + self._tokens * self._overhead
        if self._plain_rounds >= _ENOUGH:
            return self._plain_seconds * (1 + self._tokens / self._plain_rounds)
        return None

    def _correction(self, prices: float) -> float:
        """How much more plain passes took than their prices."""
        prior = _PRIOR * prices / self._tokens
        return (self._plain_passes + prior) / (self._plain_prices + prior)

    @property
    def _overhead(self) -> float:
        """Seconds of a plain round outside its pass."""
        if self._plain_rounds:
            return self._plain_rest / self._plain_rounds
        return self._rest / self._tokens
