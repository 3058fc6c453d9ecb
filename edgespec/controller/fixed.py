"""Drafts of a fixed length."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..drafters import Drafter, most_passengers_of, passengers_of, plan
from ..errors import OptionError
from ..types import Draft, Guess, Round
from ..verify import RoundContext


class Fixed:
    """Always drafts `k` tokens, by the first drafter that has any: for comparison, and for those who know better. Each
    pass carries the passengers of the first drafter that has any.

    Raises:
        OptionError: a negative `k`.
    """

    def __init__(self, drafters: Sequence[Drafter], k: int) -> None:
        if k < 0:
            raise OptionError(f"k is {k}; it must be 0 (plain decoding) or more, or auto")
        self.drafters = tuple(drafters) if k else ()
        self.k = k

    def choose(self, round_context: RoundContext, limit: int) -> Draft:
        return with_passengers(self._draft(round_context, limit), self.drafters, round_context, limit)

    def _draft(self, round_context: RoundContext, limit: int) -> Draft:
        for drafter in self.drafters if limit > 0 else ():
            drafter.begin(round_context)
            if guesses := straight(drafter, round_context, min(self.k, limit)):
                q = [guess.q for guess in guesses if guess.q is not None]
                return Draft.chain([guess.token for guess in guesses], drafter.name, q or None)
        return Draft()

    def observe(self, round: Round) -> None:  # noqa: A002
        """It never changes its mind."""


def with_passengers(draft: Draft, drafters: Sequence[Drafter], round_context: RoundContext, limit: int) -> Draft:
    """`draft`, and the passengers of the first drafter that may have any, at most `limit` tokens together."""
    for drafter in drafters:
        if most_passengers_of(drafter):
            drafter.begin(round_context)
            return replace(draft, passengers=passengers_of(drafter, max(0, limit - len(draft))))
    return draft


def straight(drafter: Drafter, round_context: RoundContext, n: int) -> list[Guess]:
    """The likeliest guess, `n` times over or to the end of the text; the drafter has begun the round."""
    plan(drafter, n)
    path: list[Guess] = []
    tokens: list[int] = []
    while len(path) < n and not (path and round_context.is_eog(tokens[-1])):
        guess = next(iter(drafter.guess(tokens, 1)), None)
        if guess is None:
            break
        path.append(guess)
        tokens.append(guess.token)
    return path
