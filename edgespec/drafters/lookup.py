"""Prompt lookup: what followed the last time the text stood here (Saxena 2023; Yang et al. 2023).

The longest suffix of prompt and output that has occurred before is looked up, of its occurrences the newest, and
what followed it is proposed. Costs microseconds.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..backends import common_prefix
from ..errors import OptionError
from ..types import Guess, Round
from ..verify import Drawing


class Lookup:
    """Prompt lookup over n-grams of `min_ngram` to `max_ngram` tokens.

    Raises:
        OptionError: lengths that make no range.
    """

    name = "lookup"
    step_price = 0.0

    def __init__(self, min_ngram: int = 2, max_ngram: int = 8) -> None:
        if not 1 <= min_ngram <= max_ngram:
            raise OptionError(f"n-grams of {min_ngram} to {max_ngram} tokens; expected 1 <= min_ngram <= max_ngram")
        self._lengths = range(min_ngram, max_ngram + 1)
        self._seen: list[int] = []
        self._context: Sequence[int] = ()
        #: For each n-gram, where its newest occurrence ends: the index of the token that followed.
        self._follower: dict[tuple[int, ...], int] = {}

    def begin(self, drawing: Drawing) -> None:
        self._read(drawing.context)
        self._context = drawing.context

    def guess(self, path: Sequence[int], most: int) -> Sequence[Guess]:  # noqa: ARG002
        text = [*self._context[-8:], *path]
        for n in reversed(self._lengths):
            if n < len(text) and (at := self._follower.get(tuple(text[-n:]))) is not None:
                return (Guess(self._context[at], self._confidence(n)),)
        return ()

    def observe(self, round: Round) -> None:  # noqa: A002
        """All it knows is in the context."""

    def close(self) -> None:
        self._seen.clear()
        self._follower.clear()

    def _read(self, context: Sequence[int]) -> None:
        """Index the n-grams of `context` that have a follower; those of another text are forgotten."""
        same = common_prefix(self._seen, context)
        if same < len(self._seen):
            self._follower.clear()
            self._seen.clear()
        for at in range(len(self._seen), len(context)):
            for n in self._lengths:
                if n > at:
                    break
                self._follower[tuple(context[at - n : at])] = at
        self._seen.extend(context[len(self._seen) :])

    def _longest(self, context: Sequence[int]) -> tuple[int, int] | None:
        for n in reversed(self._lengths):
            if n < len(context) and (follower := self._follower.get(tuple(context[-n:]))) is not None:
                return n, follower
        return None

    def _confidence(self, matched: int) -> float:
        """Each accepted token makes the match one longer, so confidence grows along the draft."""
        longest = self._lengths[-1]
        return min(matched, longest) / (longest + 1)
