"""Drafters: each guesses the next tokens of the target. One method per file, named after the method.

A wrong guess costs time, never correctness. A new drafter is a file here and a line in runtime/opening.py; or an object
that an app gives to `edgespec.load`; or an installed package with an entry point in the group `edgespec.drafters`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from ..backends import Vocabulary
from ..types import Evaluated, Guess, Passengers, Round
from ..verify import RoundContext

# Of a step, what a token takes to read at least and at most until that was measured. Draft models of 3 to 15 million
# parameters take 0.10 to 0.29 on two cores of a Xeon, where the slope of passes over 1 to 16 tokens is 0.30 to 0.37; on
# an H100 0.03. A slope of 0, as noise may have it, would make reading free, and what it took a hiccup.
_READING = (0.01, 0.25)


class Drafter(Protocol):
    """Guesses the target's next token at any node of a draft tree.

    A drafter is called per node, not per draft, so that the controller can compare the benefit of every guess with its
    price before it is made, and drafters can continue each other's guesses.

    A subclass of this class needs `name`, `begin` and `guess` only. `edgespec.testing.check_drafter` tests whether a
    drafter conforms to this protocol.
    """

    #: A unique name, printable, without spaces, commas and plus signs.
    name: str

    @property
    def step_price(self) -> float:
        """Seconds per guess, as measured when loading; 0 if they are negligible.

        A drafter whose guesses have a `q` must have a price above 0: under `rejection` and `block` every token drawn
        must be verified.
        """
        return 0.0

    def begin(self, round_context: RoundContext) -> None:
        """Begin a round: until the next call, guesses follow `round_context.tokens`, all committed tokens.

        A drafter with a state rolls it back to the longest common prefix with them; there is no other notice of
        rollbacks. The list belongs to the engine and must not be changed.
        """
        ...

    def guess(self, path: Sequence[int], most: int) -> Sequence[Guess]:
        """At most `most` guesses of the token after the context and `path`, the likeliest first.

        Must be empty after an end-of-generation token (`RoundContext.is_eog`), and is empty if the drafter has no
        guess. Mostly a path is that of the call before with one token more, which may come from another drafter.
        Guesses are distinct tokens of the target's vocabulary. A guess has a `q` only if it comes from
        `RoundContext.draw`; the distribution of the output depends on that.

        Args:
            path: the draft's tokens from the root to this node.
            most: 1 or more.
        """
        ...

    def observe(self, round: Round) -> None:  # noqa: A002, ARG002 - the field's word
        """Learn from the round that was just committed."""
        return  # a protocol's method without a body is abstract for type checkers

    def close(self) -> None:
        """Free resources. May be called several times."""
        return


@runtime_checkable
class Follower(Protocol):
    """Further members of a drafter that learns from all tokens the target evaluates, in all rounds."""

    @property
    def top(self) -> int | None:
        """How many of the target's likeliest tokens it needs after each token; None switches `evaluated` off."""
        ...

    def evaluated(self, what: Evaluated) -> None:
        """Learn from a prompt, or from the pass of a round before `observe` is called for that round."""
        ...


@runtime_checkable
class ReadingDrafter(Protocol):
    """A further member of a drafter that reads the text with passes of its own, and knows what wide ones cost."""

    @property
    def reading_price(self) -> float:
        """Seconds that a token of a long text should take to read, until that is measured."""
        ...


@runtime_checkable
class HoldingDrafter(Protocol):
    """A further member of a drafter that reads the text with passes of its own, and may hold several texts."""

    def held(self, context: Sequence[int]) -> int | None:
        """How many tokens at the beginning of `context` it need not read any more; None where it does not know."""
        ...


@runtime_checkable
class BlockDrafter(Protocol):
    """Further members of a drafter one pass of which makes guesses at several depths.

    The guesses of a pass that began at a path of n tokens are those after paths of n, n + 1, ... tokens that go on from
    it: as many depths as were planned. They take next to no time, and may be marginals: given the tokens before the
    pass, whatever the path has after them. A guess after another or a longer path takes another pass, or is empty.
    """

    @property
    def block_prices(self) -> Sequence[float]:
        """Seconds of a pass that makes guesses at 1, 2, ... depths, up to the most that it can; one or more.

        `step_price` is the first of them.
        """
        ...

    def plan(self, guesses: int) -> None:
        """The passes of this round make guesses at so many depths, if they can; called after `begin`, maybe repeatedly.
        Without it they make as many as they can."""
        ...


@runtime_checkable
class PassengerDrafter(Protocol):
    """Further members of a drafter that has tokens computed in the target's passes beside the draft. Their rows come
    back to it by `Follower.evaluated`, as the last nodes of a pass, if the controller took them."""

    @property
    def most_passengers(self) -> int:
        """The most passengers of a pass; none where it is 0."""
        ...

    def passengers(self, most: int) -> Passengers:
        """The passengers of this round's pass, at most `most`; called after `begin`."""
        ...


def block_prices_of(drafter: Drafter) -> Sequence[float]:
    """`BlockDrafter.block_prices`; for other drafters the price of a step, which makes one guess."""
    return drafter.block_prices if isinstance(drafter, BlockDrafter) else (drafter.step_price,)


def reading_price_of(drafter: Drafter) -> float:
    """`ReadingDrafter.reading_price`, from a hundredth to a quarter of a step; for other drafters a quarter."""
    least, most = (share * drafter.step_price for share in _READING)
    return min(most, max(least, drafter.reading_price)) if isinstance(drafter, ReadingDrafter) else most


def held_by(drafter: Drafter, context: Sequence[int]) -> int | None:
    """`HoldingDrafter.held`; None for other drafters, too."""
    return drafter.held(context) if isinstance(drafter, HoldingDrafter) else None


def plan(drafter: Drafter, guesses: int) -> None:
    """`BlockDrafter.plan`; nothing for other drafters."""
    if isinstance(drafter, BlockDrafter):
        drafter.plan(guesses)


def most_passengers_of(drafter: Drafter) -> int:
    """`PassengerDrafter.most_passengers`; 0 for other drafters."""
    return drafter.most_passengers if isinstance(drafter, PassengerDrafter) else 0


def passengers_of(drafter: Drafter, most: int) -> Passengers:
    """`PassengerDrafter.passengers`; none for other drafters."""
    return drafter.passengers(most) if isinstance(drafter, PassengerDrafter) else Passengers()


def top_of(drafter: Drafter) -> int | None:
    """`Follower.top`; None for a drafter that is not a follower."""
    return drafter.top if isinstance(drafter, Follower) else None


@dataclass(frozen=True, slots=True)
class Target:
    """The model that a drafter drafts for.

    Args:
        vocabulary: its tokens, and conversion between text and tokens.
        context: the most tokens of prompt and answer.
        description: its name, for users.
        weights: a key for its weights, for data that is kept between runs; empty if not known.
    """

    vocabulary: Vocabulary
    context: int
    description: str = ""
    weights: str = ""


#: Makes a drafter for a target: a function, or a class whose constructor takes a `Target`.
Factory = Callable[[Target], Drafter]
