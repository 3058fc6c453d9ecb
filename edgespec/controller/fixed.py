"""Drafts of a fixed length."""

from __future__ import annotations

from collections.abc import Sequence

from ..drafters import Drafter, plan
from ..errors import OptionError
from ..types import Draft, Guess, Round
from ..verify import RoundContext
from .candidates import Candidates


class Fixed:
    """Always drafts `k` tokens: for comparison, and for those who know better.

    By default by the first drafter that has any. With `nodes`, by all of them: the chains of all drafters are merged
    into one tree (SpecInfer, Miao et al. 2024, arXiv 2305.09781). How long each chain may be is decided before its
    tokens are known, and all that is guessed is verified, as `rejection` and `block` require.

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
