"""A wrapper that checks the guesses of a drafter from outside the package.

Unchecked, an invalid token would reach the native code of the engine, and an invalid confidence the controller.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from operator import index
from typing import Any

from ..errors import DrafterError
from ..types import Distribution, Evaluated, Guess, Passengers, Round
from ..values import shown
from ..verify import RoundContext
from . import (
    Drafter,
    Follower,
    ReadingDrafter,
    block_prices_of,
    held_by,
    most_passengers_of,
    passengers_of,
    plan,
    top_of,
)

_MOST = 64  # the greatest `Follower.top`
_LONGEST = 256  # depths of a block
_TOTAL = 1e-6  # tolerance of the sum of probabilities


class Checked:
    """A drafter that passes on the guesses of another one, and raises DrafterError for an invalid one.

    Args:
        name: the name of the drafter.
        vocab: the size of the target's vocabulary.
    """

    def __init__(self, drafter: Drafter, name: str, vocab: int) -> None:
        self.name = name
        self._drafter = drafter
        self._vocab = vocab

    @property
    def step_price(self) -> float:
        return _seconds("step_price", self._drafter.step_price)

    @property
    def block_prices(self) -> Sequence[float]:
        prices = block_prices_of(self._drafter)
        if not isinstance(prices, Sequence) or not 1 <= len(prices) <= _LONGEST:
            raise DrafterError(
                f"its block_prices are {shown(prices)}; there must be 1 to {_LONGEST}, for each depth one"
            )
        return [_seconds("block_prices", price) for price in prices]

    @property
    def reading_price(self) -> float:
        price = self._drafter.reading_price if isinstance(self._drafter, ReadingDrafter) else math.inf
        return math.inf if price == math.inf else _seconds("reading_price", price)

    def held(self, context: Sequence[int]) -> int | None:
        held = held_by(self._drafter, context)
        if held is None or (type(held) is int and 0 <= held <= len(context)):
            return held
        raise DrafterError(f"it holds {shown(held)} tokens of {len(context)}; it must be a number from 0 to that")

    def plan(self, guesses: int) -> None:
        plan(self._drafter, guesses)

    @property
    def most_passengers(self) -> int:
        most = most_passengers_of(self._drafter)
        if type(most) is int and 0 <= most <= _LONGEST:
            return most
        raise DrafterError(f"its most_passengers is {shown(most)}; it must be a number from 0 to {_LONGEST}")

    def passengers(self, most: int) -> Passengers:
        found = passengers_of(self._drafter, most)
        try:
            tokens, parents = (tuple(map(index, each)) for each in found)
        except (TypeError, ValueError):
            raise DrafterError(f"its passengers are {shown(found)}; expected edgespec.Passengers") from None
        tree = len(tokens) == len(parents) and all(-1 <= parent < node for node, parent in enumerate(parents))
        if not tree or len(tokens) > most or not all(0 <= token < self._vocab for token in tokens):
            raise DrafterError(
                f"its passengers are {shown(found)}; expected a tree of at most {most} tokens from 0 to "
                f"{self._vocab - 1}, parents before their children"
            )
        return Passengers(tokens, parents)

    @property
    def top(self) -> int | None:
        top = top_of(self._drafter)
        if top is None or (type(top) is int and 0 <= top <= _MOST):
            return top
        raise DrafterError(f"its top is {shown(top)}; it must be a number of tokens from 0 to {_MOST}, or None")

    def begin(self, round_context: RoundContext) -> None:
        self._drafter.begin(round_context)

    def guess(self, path: Sequence[int], most: int) -> Sequence[Guess]:
        guesses = [self._checked(guess) for guess in self._drafter.guess(tuple(path), most)]
        if len(guesses) > most:
            raise DrafterError(f"it made {len(guesses)} guesses, but at most {most} were requested")
        if len({guess.token for guess in guesses}) < len(guesses):
            raise DrafterError(f"it guessed a token twice at one node: {[guess.token for guess in guesses]}")
        return guesses

    def evaluated(self, what: Evaluated) -> None:
        if isinstance(self._drafter, Follower):
            self._drafter.evaluated(what)

    def observe(self, round: Round) -> None:  # noqa: A002 - the field's word
        self._drafter.observe(round)

    def close(self) -> None:
        self._drafter.close()

    def _checked(self, guess: Any) -> Guess:
        try:
            token, confidence = index(guess.token), float(guess.confidence)
        except (AttributeError, TypeError, ValueError):
            raise DrafterError(
                f"it guessed {shown(guess)}; a guess is edgespec.Guess(token, confidence) with a whole number and a "
                "probability"
            ) from None
        if not 0 <= token < self._vocab:
            raise DrafterError(f"it guessed the token {token}; the vocabulary has tokens 0 to {self._vocab - 1}")
        if not 0 <= confidence <= 1:
            raise DrafterError(f"its confidence is {confidence}; it must be from 0 to 1")
        if guess.q is not None:
            self._check_drawn(token, guess.q)
        return Guess(token, confidence, guess.q)

    def _check_drawn(self, token: int, q: Distribution) -> None:
        """Raises DrafterError if `token` cannot have been drawn from `q`."""
        sound = len(q.tokens) == len(q.probs) and abs(float(q.probs.sum()) - 1) < _TOTAL and float(q.probs.min()) > 0
        if not (sound and q.of(token) > 0 and q.tokens.min() >= 0 and q.tokens.max() < self._vocab):
            raise DrafterError(f"the token {token} cannot have been drawn from the q given with it")


def _seconds(name: str, price: Any) -> float:
    """A price as a number. Raises DrafterError."""
    try:
        seconds = float(price)
    except (TypeError, ValueError):
        seconds = math.nan
    if not 0 <= seconds < math.inf:
        raise DrafterError(f"its {name} is {shown(price)}; it must be seconds, 0 or more")
    return seconds
