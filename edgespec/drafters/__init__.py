"""Drafters: each guesses what the target says next. One method a file; the file's name is the method's name.

A bad guess costs time, never correctness. A new drafter is one file here and one line where the runtime opens
drafters by name.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ..types import Guess, Round
from ..verify import Drawing


class Drafter(Protocol):
    """Guesses the target's next token, and the one after, wherever it is asked to.

    It is asked token by token, and not for a draft, so that the controller can weigh every token before it is paid
    for, and drafters can go on from each other's guesses.
    """

    name: str

    @property
    def step_price(self) -> float:
        """Seconds that one guess takes, as measured at opening; 0 where it is too small to matter.

        A drafter that draws (`Guess.q`) has a price: under rejection all that is drawn must be bought, so it is asked
        with care.
        """
        ...

    def begin(self, drawing: Drawing) -> None:
        """A round begins: guesses follow `drawing.context`, all that is committed, until the next begins.

        A drafter with state brings it in line by longest common prefix: nobody tells it to rewind.
        """
        ...

    def guess(self, path: Sequence[int], most: int) -> Sequence[Guess]:
        """At most `most` guesses of the token that follows the context and `path`, the likeliest first.

        Empty where there is nothing to go on. Mostly a path is the last one and a token more, perhaps of another
        drafter.
        """
        ...

    def observe(self, round: Round) -> None:  # noqa: A002 - the field's word
        """Learn from the round just committed."""
        ...

    def close(self) -> None:
        """Free what it holds."""
        ...
