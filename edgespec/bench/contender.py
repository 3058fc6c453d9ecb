"""The protocol of contenders: they answer a prompt, and report when tokens came."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from ..errors import EdgespecError
from ..sampling import Sampling
from ..types import Round


class ContenderFailed(EdgespecError):
    """A contender failed; the run continues without it."""


@dataclass(frozen=True, slots=True)
class AnswerRequest:
    """One prompt.

    Args:
        prompt: its tokens, special ones included; nothing is added.
        max_tokens: tokens of the answer, at most.
        replay: tokens that replace the target's own choices; its passes are computed in full. None for a free answer.
    """

    prompt: Sequence[int]
    sampling: Sampling
    max_tokens: int
    replay: Sequence[int] | None = None


@dataclass(frozen=True, slots=True)
class Chunk:
    """Tokens that came together, without one that ends the turn; possibly none.

    `tokens` is None where the engine reports only their number. `round` is the round of edgespec's engine.
    """

    text: str
    tokens: tuple[int, ...] | None
    count: int
    round: Round | None = None


class Done(NamedTuple):
    """The end of an answer. `prompt_seconds` is the time until all tokens of the prompt but the last were evaluated;
    None where the engine does not report it."""

    prompt_seconds: float | None


class Contender(Protocol):
    """An engine that answers. Its constructor starts it, and raises ContenderFailed if it cannot be started."""

    #: The name on the command line, and the title in the report.
    name: str
    title: str
    #: Whether it can replay a given text.
    replays: bool

    def answer(self, ask: AnswerRequest) -> Iterator[Chunk | Done]:
        """Stream the answer; `Done` is last.

        Raises:
            ContenderFailed: the engine failed, or did not respond in time.
        """
        ...

    def memory(self) -> int | None:
        """The peak memory of its process in bytes; None where not known."""
        ...

    def close(self) -> None:
        """End it and the processes that it started. May be called more than once."""
        ...
