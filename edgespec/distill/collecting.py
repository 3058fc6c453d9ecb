"""The target's answers, by the ordinary runtime: speculation makes them sooner and does not change them."""

from __future__ import annotations

import hashlib
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..engine import Finished, Text
from ..errors import Interrupted
from ..logprobs import TokenLogprobs
from ..runtime.runtime import Runtime
from ..runtime.speculation import Speculation
from ..sampling import Sampling
from .example import LIKELY, Example
from .prompts import Prompt
from .shards import Shards

_TOGETHER = 16  # answers of a shard: an interruption loses those of an incomplete one
_LEAST = -30.0  # a logarithm of probability; that of a token with the probability 0 is -inf


@dataclass(frozen=True, slots=True)
class Wanted:
    """The answers to collect.

    Args:
        prompts: what is asked.
        temperatures: at each of which every prompt is answered; 0 is greedy.
        answers: to a prompt at each temperature above 0, each with its own seed.
        max_tokens: of an answer.
    """

    prompts: Sequence[Prompt]
    temperatures: Sequence[float]
    answers: int
    max_tokens: int

    @property
    def tasks(self) -> list[tuple[Prompt, Sampling]]:
        """A prompt and its sampling for each answer. Each temperature asks all prompts before the next one begins."""
        return [
            (prompt, Sampling(temperature=temperature, seed=seed))
            for temperature in self.temperatures
            for seed in range(self.answers if temperature else 1)
            for prompt in self.prompts
        ]

    @property
    def shards(self) -> int:
        """How many shards these answers take."""
        return -(-len(self.tasks) // _TOGETHER)

    def plan(self, target: str) -> dict[str, Any]:
        """What the answers depend on; `target` is a key for its weights."""
        asked = hashlib.sha256()
        for prompt in self.prompts:
            asked.update(np.asarray(prompt.tokens, np.int64).tobytes() + bytes([prompt.held_out]))
        return {
            "target": target,
            "prompts": asked.hexdigest(),
            "temperatures": list(self.temperatures),
            "answers": self.answers,
            "max_tokens": self.max_tokens,
        }


def collect(runtime: Runtime, wanted: Wanted, shards: Shards, speculation: Speculation) -> Generator[int, None, None]:
    """Answer what `shards` lacks; yields the number of answers that there are after each.

    Raises:
        Interrupted: an answer was cancelled; the shards that are complete stay.
        ConversionError: a shard cannot be written.
    """
    tasks = wanted.tasks
    for number in range(wanted.shards):
        first = number * _TOGETHER
        asked = tasks[first : first + _TOGETHER]
        if not shards.holds(number):
            found = []
            for prompt, sampling in asked:
                found.append(_answered(runtime, prompt, sampling, wanted.max_tokens, speculation))
                yield first + len(found)
            shards.write(number, found)
        yield first + len(asked)


def _answered(
    runtime: Runtime, prompt: Prompt, sampling: Sampling, max_tokens: int, speculation: Speculation
) -> Example:
    said: list[TokenLogprobs] = []
    for event in runtime.complete(
        prompt.tokens, sampling, max_tokens=max_tokens, speculation=speculation, logprobs=LIKELY
    ):
        if isinstance(event, Text):
            said += event.logprobs
        if isinstance(event, Finished) and event.reason == "cancelled":
            raise Interrupted
    tokens = [*prompt.tokens, *(each.token for each in said)]
    width = min(LIKELY, runtime.vocabulary.size)
    likely = np.asarray([[other.token for other in each.top] for each in said], np.int32).reshape(-1, width)
    logprobs = np.asarray([[other.logprob for other in each.top] for each in said], np.float64).reshape(-1, width)
    kept = np.maximum(logprobs, _LEAST).astype(np.float16)
    start = len(prompt.tokens)
    return Example(np.asarray(tokens, np.int32), start, likely, kept, sampling.temperature, prompt.held_out)
