"""An answer of the target, with its likeliest tokens at each place."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

LIKELY = 32  #: tokens of the target's distribution that are kept: 192 bytes a place, where all of 128,000 take 256 kB


@dataclass(frozen=True, slots=True, eq=False)
class Example:
    """An answer with its prompt.

    Args:
        tokens: of the prompt and the answer, int32 [n].
        start: the index of the first token of the answer, at least 1.
        likely: the likeliest tokens at each place of the answer, the likeliest first, int32 [n - start, `LIKELY`].
        logprobs: their natural logarithms of probability at temperature 1, float16, of the same shape.
        temperature: that the answer was sampled at; 0 is greedy.
        held_out: whether it measures acceptance, and is not trained on.
    """

    tokens: npt.NDArray[np.int32]
    start: int
    likely: npt.NDArray[np.int32]
    logprobs: npt.NDArray[np.float16]
    temperature: float
    held_out: bool

    @property
    def answer(self) -> npt.NDArray[np.int32]:
        """The tokens of the answer, int32 [n - start]."""
        return self.tokens[self.start :]

    def within(self, window: int) -> Example:
        """The example in at most `window` tokens: without the beginning of the prompt, then without the end of the
        answer."""
        drop = min(max(0, len(self.tokens) - window), self.start - 1)
        tokens, start = self.tokens[drop : drop + window], self.start - drop
        kept = len(tokens) - start
        return Example(tokens, start, self.likely[:kept], self.logprobs[:kept], self.temperature, self.held_out)


def size_of(places: int, prompts: int) -> int:
    """Bytes on disk of answers with this many places after prompts with this many tokens."""
    each: Any = np.dtype(np.int32).itemsize + np.dtype(np.float16).itemsize
    return places * (LIKELY * int(each) + 4) + prompts * 4
