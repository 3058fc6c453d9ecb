"""Drafters: each guesses what the target says next. One method a file; the file's name is the method's name.

A bad guess costs time, never correctness. A new drafter is one file here and one line where the runtime opens
drafters by name, or an object that an app gives to `edgespec.load`, or an installed package with an entry point in the
group `edgespec.drafters`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from ..backends import Vocabulary
from ..types import Evaluated, Guess, Round
from ..verify import RoundContext


class Drafter(Protocol):
    """Guesses the target's next token, and the one after, wherever it is asked to.

    It is asked token by token, and not for a draft, so that the controller can weigh every token before it is paid
    for, and drafters can go on from each other's guesses.

    A class that inherits from this one needs `name`, `begin` and `guess` only. `edgespec.testing.check_drafter` tests
    whether a drafter keeps to all that is said here.
    """

    name: str

    @property
    def step_price(self) -> float:
        """Seconds that one guess takes, as measured at opening; 0 where it is too small to matter.

        A drafter that draws (`Guess.q`) has a price: under rejection all that is drawn must be bought, so it is asked
        with care.
        """
        return 0.0

    def begin(self, round_context: RoundContext) -> None:
        """A round begins: guesses follow `round_context.tokens`, all that is committed, until the next begins.

        A drafter with state brings it in line by longest common prefix: nobody tells it to rewind. The context is the
        engine's own list, to be read and not to be changed.
        """
        ...

    def guess(self, path: Sequence[int], most: int) -> Sequence[Guess]:
        """At most `most` guesses of the token that follows the context and `path`, the likeliest first.

        Empty where there is nothing to go on, and after a token that ends the text (`RoundContext.is_eog`). Mostly a
        path is the last one and a token more, perhaps of another drafter. Tokens are of the target's vocabulary and
        differ from each other. One has a `q` only if it comes from `RoundContext.draw`: the distribution of the output
        rests on that.
        """
        ...

    def observe(self, round: Round) -> None:  # noqa: A002, ARG002 - the field's word
        """Learn from the round just committed."""
        return  # a method of a protocol without a body is abstract to type checkers

    def close(self) -> None:
        """Free what it holds. Closing twice does no harm."""
        return


@runtime_checkable
class Follower(Protocol):
    """What a drafter has, too, that learns from all that the target evaluates, also in rounds it had no part in."""

    @property
    def top(self) -> int | None:
        """How many of the target's likeliest tokens it wants to know after each token; None to be told of nothing."""
        ...

    def evaluated(self, what: Evaluated) -> None:
        """Learn from a prompt, or from the pass of a round, before `observe` is called for that."""
        ...


def top_of(drafter: Drafter) -> int | None:
    """`Follower.top`; None of a drafter that is no follower."""
    return drafter.top if isinstance(drafter, Follower) else None


@dataclass(frozen=True, slots=True)
class Target:
    """What a drafter may know of the model that it drafts for.

    Args:
        vocabulary: its tokens, and text to tokens and back.
        context: tokens that a text may have.
        description: the model by name.
        weights: what its text depends on, as a key for what is kept of it; empty where that is not known.
    """

    vocabulary: Vocabulary
    context: int
    description: str = ""
    weights: str = ""


#: Makes a drafter for a target; a class whose constructor takes one is such a function, too.
Factory = Callable[[Target], Drafter]
