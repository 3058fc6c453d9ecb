"""Prompt look-up with n-grams of a fixed length, to compare with: Saxena 2023, "Prompt Lookup Decoding".

As in github.com/apoorvumang/prompt-lookup-decoding: the last 3 tokens, else 2, else 1, are looked for in the text, and
what followed their earliest occurrence is the draft, if `drafted` tokens did.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from edgespec.drafters import Drafter
from edgespec.types import Guess
from edgespec.verify import RoundContext


class PromptLookup(Drafter):
    """The drafter `pld`.

    Args:
        longest: tokens of the longest n-gram; 3 in Spec-Bench.
        drafted: tokens of a draft; 10 there.
    """

    name = "pld"
    _confidence = 0.5  # of all guesses: the method has none, so the controller learns how often they are right

    def __init__(self, longest: int = 3, drafted: int = 10) -> None:
        self._longest, self._drafted = longest, drafted
        self._seen: list[int] = []
        self._text = np.zeros(0, np.int64)  # the same
        self._found: list[int] = []
        self._is_eog: Callable[[int], bool] = bool

    def begin(self, round_context: RoundContext) -> None:
        self._is_eog = round_context.is_eog
        tokens, known = round_context.tokens, len(self._seen)
        if list(tokens[:known]) != self._seen:
            self._seen, self._text, known = [], np.zeros(0, np.int64), 0
        self._seen += tokens[known:]
        self._text = np.append(self._text, tokens[known:])  # all of it takes a hundredth of a small model's pass
        self._found = followers(self._text, self._longest, self._drafted)

    def guess(self, path: Sequence[int], most: int) -> Sequence[Guess]:  # noqa: ARG002 - it has one draft
        n = len(path)
        if n >= len(self._found) or list(path) != self._found[:n] or (path and self._is_eog(path[-1])):
            return ()
        return [Guess(self._found[n], self._confidence)]


def followers(text: np.ndarray, longest: int, drafted: int) -> list[int]:
    """The `drafted` tokens after the earliest occurrence of the last tokens of `text`, int64 [n]; empty if none."""
    for length in range(min(longest, len(text) - 1), 0, -1):
        # Beginnings from which on the n-gram and all that is drafted lie in the text, its own end apart.
        ends = range(length, min(len(text) - drafted, len(text) - length - 1) + 1)
        hits = np.ones(len(ends), bool)
        for place in range(length):
            hits &= text[place : place + len(ends)] == text[len(text) - length + place]
        if hits.any():
            end = ends[int(hits.argmax())]
            return [int(token) for token in text[end : end + drafted]]
    return []
