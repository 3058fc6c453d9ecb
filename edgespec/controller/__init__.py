"""The controller: which draft to verify next, at the measured prices and acceptance."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from ..drafters import Drafter
from ..types import Draft, Round
from ..verify import RoundContext


class Controller(Protocol):
    """Says what to verify next."""

    @property
    def drafters(self) -> Sequence[Drafter]:
        """All it may ask; after each round they are told of it."""
        ...

    def choose(self, round_context: RoundContext, limit: int) -> Draft:
        """A draft at most `limit` tokens deep to follow `round_context.tokens`; an empty one is a plain step."""
        ...

    def observe(self, round: Round) -> None:  # noqa: A002
        """Learn from the round that was bought."""
        ...


@runtime_checkable
class Budgeted(Protocol):
    """A further member of a controller that limits what speculation may lose."""

    @property
    def is_paused(self) -> bool:
        """Whether speculation has lost what it may; then rows of the target are not kept for drafters either."""
        ...
