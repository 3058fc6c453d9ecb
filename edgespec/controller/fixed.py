"""Drafts of a fixed length."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..drafters import Drafter, most_passengers_of, passengers_of, plan
from ..errors import OptionError
from ..types import Draft, Guess, Round
from ..verify import RoundContext
from .candidates import Candidates


class Fixed:
    """Always drafts `k` tokens: for comparison, and for those who know better.

    By default by the first drafter that has any. With `nodes`, by all of them: the chains of all drafters are merged
    into one tree (SpecInfer, Miao et al. 2024, arXiv 2305.09781). How long each chain may be is decided before its
    tokens are known, and all that is guessed is verified, as `rejection` and `block` require. Each pass carries the
    passengers of the first drafter that has any.

    Args:
        nodes: the most nodes of such a tree, where the target's session takes trees; 0 for the first drafter alone.

    Raises:
        OptionError: a negative `k`.
    """

    def __init__(self, drafters: Sequence[Drafter], k: int, nodes: int = 0) -> None:
        if k < 0:
            raise OptionError(f"k is {k}; it must be 0 (plain decoding) or more, or auto")
        self.drafters = tuple(drafters) if k else ()
        self.k = k
        self._nodes = nodes

    def choose(self, round_context: RoundContext, limit: int) -> Draft:
        return with_passengers(self._draft(round_context, limit), self.drafters, round_context, limit)

    def _draft(self, round_context: RoundContext, limit: int) -> Draft:
        found = Candidates()
        most = min(self._nodes or self.k, limit)
        for stream, drafter in enumerate(self.drafters):
            length = min(self.k, most - len(found))
            if length < 1:
                break
            drafter.begin(round_context._replace(stream=stream))
            node = -1
            for guess in straight(drafter, round_context, length):
                node = found.add(node, drafter.name, guess)
            if len(found) and not self._nodes:
                break
        return found.draft()

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
    while len(path) < n and not (path and round_context.is_over(tokens)):
        guess = next(iter(round_context.admitted(tokens, drafter.guess(tokens, 1))), None)
        if guess is None:
            break
        path.append(guess)
        tokens.append(guess.token)
    return path
