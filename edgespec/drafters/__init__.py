"""Drafters: each guesses what the target says next. One method a file; the file's name is the method's name.

A bad guess costs time, never correctness. A new drafter is one file here and one line where the runtime opens
drafters by name.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from ..types import Distribution, Draft, Floats, Round
from ..verify import Drawing, Drawn


class Terms(Protocol):
    """What a round offers a drafter: how many tokens, how to draw them, whether one more still pays."""

    #: At most so many tokens; it may fall while drafting goes on.
    limit: int

    def another(self, top: float) -> bool:
        """Whether one more token is worth drafting; asked once for each, in order, until it says no.

        `top` is the probability the drafter gives its likeliest next token. The token itself must not enter:
        lossless rejection sampling needs the length settled before the draw (see `Verifier.trims`).
        """
        ...

    def ends(self, token: int) -> bool:
        """Whether `token` ends the text, so that drafting on is pointless."""
        ...

    def draw(self, row: Floats, drafted: Sequence[int]) -> Drawn:
        """The token to follow the context and `drafted`, from the drafter's logits `row`, float32 [vocab]."""
        ...


class Drafter(Protocol):
    """Guesses what the target says next."""

    name: str
    #: Seconds that drafting one token takes, as measured at opening; 0 where it is too small to matter.
    step_price: float

    def propose(self, context: Sequence[int], terms: Terms) -> Draft:
        """At most `terms.limit` tokens to follow `context`; an empty draft where there is nothing to go on.

        `context` is all that is committed. A drafter with state brings it in line here, by longest common
        prefix: nobody tells it to rewind.
        """
        ...

    def observe(self, round: Round) -> None:  # noqa: A002 - the field's word
        """Learn from the round just committed."""
        ...

    def close(self) -> None:
        """Free what it holds."""
        ...


class Guess(NamedTuple):
    """One guess of the next token."""

    token: int
    confidence: float
    q: Distribution | None = None


class Guesser(Protocol):
    """The protocol to come, whose name will be Drafter."""

    name: str
    step_price: float

    def begin(self, drawing: Drawing) -> None: ...

    def guess(self, path: Sequence[int], most: int) -> Sequence[Guess]: ...

    def observe(self, round: Round) -> None: ...  # noqa: A002

    def close(self) -> None: ...
