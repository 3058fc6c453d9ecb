"""A drafter of an app, and answers with it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from edgespec import (
    Device,
    Drafter,
    Finished,
    Guess,
    RoundContext,
    Runtime,
    Sampling,
    Speculation,
    Target,
    Text,
    assemble,
)
from edgespec.backends.toy import Bytes, ToyModel, ngram_rule
from edgespec.testing import RuleDrafter, decode_plain

EXAMPLES = Path(__file__).parents[1] / "examples"
TALK = ngram_rule(Bytes.size, order=2, seed=5)
PROMPT = [*b"abc"]


class Mine(Drafter):
    """Right, unless told to do something else."""

    def __init__(self, target: Target | None = None, name: Any = "mine") -> None:
        self.name = name
        self.target = target
        self.closed = 0
        self._rule = RuleDrafter(TALK)

    def begin(self, round_context: RoundContext) -> None:
        self._rule.begin(round_context)

    def guess(self, path: Sequence[int], most: int) -> Sequence[Guess]:
        return self._rule.guess(path, most)

    def close(self) -> None:
        self.closed += 1


def opened(*drafters: Any, names: tuple[str, ...] | None = None, k: int | None = 3) -> Runtime:
    speculation = Speculation(names, k)
    return assemble(ToyModel(TALK), drafters=drafters, device=Device(context=128), speculation=speculation)


def answer(runtime: Runtime, sampling: Sampling | None = None) -> Finished:
    """An answer, whose text must be that of plain decoding."""
    said, sampling = list[int](), sampling or Sampling()
    for event in runtime.complete(PROMPT, sampling, max_tokens=40):
        if isinstance(event, Text):
            said += event.tokens
        elif isinstance(event, Finished):
            assert said == decode_plain(TALK, PROMPT, sampling, 40, Bytes().is_eog)
            return event
    raise AssertionError("no Finished")
