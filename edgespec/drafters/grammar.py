"""Forced tokens of a grammar: where the text can go on in one way only, its tokens are guessed.

A grammar forces text, not tokens: the same text may be written by others than those of the tokenizer, and then the
guess is wrong. So it is verified as any other. Jump-forward decoding (Zheng et al. 2024, arXiv 2312.07104) commits
forced text without asking the model which tokens it would write it with.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..types import Guess, Round
from ..verify import RoundContext


class ForcedTokens:
    """Guesses what the constraint of the round forces."""

    name = "grammar"
    step_price = 0.0

    def __init__(self) -> None:
        self._round_context: RoundContext | None = None

    def begin(self, round_context: RoundContext) -> None:
        self._round_context = round_context

    def guess(self, path: Sequence[int], most: int) -> Sequence[Guess]:
        if self._round_context is None or most < 1:
            return ()
        constraint = self._round_context.constraint
        if constraint is None or self._round_context.is_over(path):
            return ()
        return [Guess(token, 1.0) for token in constraint.forced(path)[:1]]

    def observe(self, round: Round) -> None:  # noqa: A002
        """There is nothing to learn."""

    def close(self) -> None:
        self._round_context = None
