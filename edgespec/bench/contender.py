"""What is compared: something that answers a prompt, and tells when tokens came."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from ..errors import EdgespecError
from ..sampling import Sampling
from ..types import Round


class ContenderFailed(EdgespecError):
    """A contender broke down; the others go on without it."""


@dataclass(frozen=True, slots=True)
class Ask:
    """One prompt.

    Args:
        prompt: its tokens, special ones included; nothing is to be added.
        max_tokens: tokens to say at most.
        replay: tokens that the target is made to say in place of its own choices, its passes being computed and paid
            for; None lets it choose.
    """

    prompt: Sequence[int]
    sampling: Sampling
    max_tokens: int
    replay: Sequence[int] | None = None


@dataclass(frozen=True, slots=True)
class Said:
    """Tokens that came together, without one that ends the turn, which may leave none.

    `tokens` is None where the engine tells only how many came. `round` is what our engine says of it.
    """

    text: str
    tokens: tuple[int, ...] | None
    count: int
    round: Round | None = None


class Done(NamedTuple):
    """The end of an answer; `prompt_seconds` until all of the prompt but its last token was computed, None where the
    engine does not tell."""

    prompt_seconds: float | None


class Contender(Protocol):
    """Something that answers. It is made ready when it is made, and so raises ContenderFailed then, or later on."""

    #: Short, of use on a command line; and for a person.
    name: str
    title: str
    #: Whether it can be made to say a given text.
    replays: bool

    def answer(self, ask: Ask) -> Iterator[Said | Done]:
        """Say the answer as tokens come; `Done` is last.

        Raises:
            ContenderFailed: it broke down, or does not answer in time.
        """
        ...

    def memory(self) -> int | None:
        """Bytes of its process at their peak; None where that is not known."""
        ...

    def close(self) -> None:
        """End it, and whatever it started. Closing twice does no harm."""
        ...
