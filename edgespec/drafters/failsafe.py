"""A wrapper for drafters that may fail: the answer goes on without the drafter, since drafts do not change its text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from ..errors import EdgespecError, Interrupted
from ..types import Evaluated, Guess, Passengers, Round
from ..verify import RoundContext
from . import (
    Drafter,
    Follower,
    block_prices_of,
    held_by,
    most_passengers_of,
    passengers_of,
    plan,
    reading_price_of,
    top_of,
)

R = TypeVar("R")


class Failsafe:
    """A drafter that passes on the guesses of another one until that fails, and none afterwards. `Interrupted` is not a
    failure."""

    def __init__(self, drafter: Drafter) -> None:
        self.name = drafter.name
        #: A message for the user about the failure; empty before one.
        self.notice = ""
        self._drafter = drafter

    @property
    def step_price(self) -> float:
        return self._guarded(0.0, lambda: self._drafter.step_price)

    @property
    def block_prices(self) -> Sequence[float]:
        return self._guarded((0.0,), lambda: block_prices_of(self._drafter))

    @property
    def reading_price(self) -> float:
        return self._guarded(0.0, lambda: reading_price_of(self._drafter))

    def held(self, context: Sequence[int]) -> int | None:
        return self._guarded(None, lambda: held_by(self._drafter, context))

    def plan(self, guesses: int) -> None:
        self._guarded(None, lambda: plan(self._drafter, guesses))

    @property
    def most_passengers(self) -> int:
        return self._guarded(0, lambda: most_passengers_of(self._drafter))

    def passengers(self, most: int) -> Passengers:
        return self._guarded(Passengers(), lambda: passengers_of(self._drafter, most))

    @property
    def top(self) -> int | None:
        return self._guarded(None, lambda: top_of(self._drafter))

    def begin(self, round_context: RoundContext) -> None:
        self._guarded(None, lambda: self._drafter.begin(round_context))

    def guess(self, path: Sequence[int], most: int) -> Sequence[Guess]:
        # Not by `_guarded`, for speed: this is called for every node of a draft tree.
        if self.notice:
            return ()
        try:
            return self._drafter.guess(path, most)
        except Interrupted:
            raise
        except Exception as error:  # noqa: BLE001 - an engine or an external drafter may raise anything
            self._fail(error)
            return ()

    def evaluated(self, what: Evaluated) -> None:
        self._guarded(None, lambda: self._drafter.evaluated(what) if isinstance(self._drafter, Follower) else None)

    def observe(self, round: Round) -> None:  # noqa: A002 - the field's word
        self._guarded(None, lambda: self._drafter.observe(round))

    def close(self) -> None:
        """Close the drafter, also one that failed. An error of its `close` does not keep others from being closed."""
        try:
            self._drafter.close()
        except Exception as error:  # noqa: BLE001
            self._fail(error)

    def _guarded(self, otherwise: R, work: Callable[[], R]) -> R:
        """The result of `work`; `otherwise` after a failure."""
        if self.notice:
            return otherwise
        try:
            return work()
        except Interrupted:
            raise
        except Exception as error:  # noqa: BLE001
            self._fail(error)
            return otherwise

    def _fail(self, error: Exception) -> None:
        kind = "" if isinstance(error, EdgespecError) else f"{type(error).__name__}: "
        what = " ".join(f"{kind}{error}".split())
        self.notice = f"The drafter {self.name!r} failed and drafts no more until the model is loaded again: {what}"
