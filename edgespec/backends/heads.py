"""The protocols of heads, which guess from the hidden states of their target."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from ..types import Floats, Ints
from .interrupt import Interrupt
from .session import Session
from .vocabulary import Labels


class Head(Protocol):
    """A head of multi-token prediction over one session of its target, whose hidden states it reads."""

    #: The width of a row of logits, that of the target.
    vocab: int
    #: The most tokens of text.
    context: int

    def follows(self, context: Sequence[int]) -> bool:
        """Whether it can draft after `context`, of which the target holds all tokens but the last one."""
        ...

    def logits(self, last: int, path: Sequence[int]) -> Floats:
        """The logits after what the target holds, the token `last` and `path`, float32 [vocab], valid until the next
        call. Call it only if the head `follows` that context."""
        ...

    def close(self) -> None:
        """Free its cache; the session of the target is closed after it."""
        ...


@runtime_checkable
class HeadWeights(Protocol):
    """Further members of a model that may hold a head: its own, or, in a file without a model, another's."""

    @property
    def holds_head(self) -> bool:
        """Whether a head was loaded."""
        ...

    @property
    def head_drafter(self) -> str:
        """The name of the drafter that uses the head: "mtp", "eagle", "eagle3" or "exit"."""
        ...

    def head(self, target: Session, interrupt: Interrupt | None = None) -> Head:
        """The head over a session of its target that holds no tokens yet, and is closed after the head.

        Args:
            interrupt: stops its passes; by default that of the target's session or of its own model.

        Raises:
            ModelError: the head is not one of this target.
            MissingPackage: the engine that is installed cannot run it.
            EngineError: the engine could not open it.
        """
        ...


@runtime_checkable
class FittedHead(Protocol):
    """Weights of a head that has no vocabulary of its own."""

    #: What the drafter is called.
    kind: str

    def require_fit(self, vocabulary: Labels) -> None:
        """ModelError unless a target with this vocabulary may be the one that the head was made for."""
        ...


@runtime_checkable
class StateHead(FittedHead, Protocol):
    """Weights of heads that guess several places from one final state of their target (`FINAL`)."""

    #: Guesses of a pass at successive places.
    heads: int
    #: Numbers of a state.
    width: int

    def require_width(self, width: int) -> None:
        """ModelError unless they read states of this many numbers."""
        ...

    def guesses(self, state: Floats) -> tuple[Ints, Floats]:
        """The likeliest tokens at successive places after a token, and the logarithms of their probabilities, both
        [heads, n].

        Args:
            state: that from which the target chose this token, float32 [width].
        """
        ...


@runtime_checkable
class PartOfTarget(Protocol):
    """A further member of a model that may be made of layers of its target."""

    @property
    def is_part(self) -> bool:
        """Whether it is a draft model of that kind."""
        ...
