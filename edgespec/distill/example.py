"""An answer of the target, with its likeliest tokens at each place."""

from __future__ import annotations

from dataclasses import dataclass, replace
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
        rows: the target's hidden rows of `tokens`, float16 [n, k * width], for heads, which read them.
    """

    tokens: npt.NDArray[np.int32]
    start: int
    likely: npt.NDArray[np.int32]
    logprobs: npt.NDArray[np.float16]
    temperature: float
    held_out: bool
    rows: npt.NDArray[np.float16] | None = None

    @property
    def answer(self) -> npt.NDArray[np.int32]:
        """The tokens of the answer, int32 [n - start]."""
        return self.tokens[self.start :]

    def within(self, window: int) -> Example:
        """The example in at most `window` tokens: without the beginning of the prompt, then without the end of the
        answer."""
        return self.after(max(1, self.start - max(0, len(self.tokens) - window)))._until(window)

    def after(self, most: int) -> Example:
        """The example with only the last `most` tokens of its prompt, at least 1."""
        drop = max(0, self.start - most)
        rows = None if self.rows is None else self.rows[drop:]
        return replace(self, tokens=self.tokens[drop:], start=self.start - drop, rows=rows)

    def _until(self, end: int) -> Example:
        kept = max(0, end - self.start)
        rows = None if self.rows is None else self.rows[:end]
        likely, logprobs = self.likely[:kept], self.logprobs[:kept]
        return replace(self, tokens=self.tokens[:end], likely=likely, logprobs=logprobs, rows=rows)


def size_of(places: int, prompts: int) -> int:
    """Bytes on disk of answers with this many places after prompts with this many tokens."""
    each: Any = np.dtype(np.int32).itemsize + np.dtype(np.float16).itemsize
    return places * (LIKELY * int(each) + 4) + prompts * 4
