"""The rows of logits of one pass that guesses at several depths."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..types import Floats, Guess
from ..verify import RoundContext


class BlockRows:
    """Guesses from the rows of one pass, each made once unless penalties or a constraint let it depend on the path.

    Under `match` they are the likeliest tokens of a row. Under `rejection` and `block` each is drawn from its row: the
    rows are fixed before any token is drawn, so row i is the distribution of token i given the tokens before it, as
    these rules require, although it does not depend on them. A point guess would be lossless, too, but accepted with
    probability p(x), which is less than the sum of min(p, q) where q resembles p.

    Args:
        round_context: the round.
        rows: logits after the pass's path and after the guesses before, float32 [depths, vocabulary]; they must stay
            valid for the round.
        start: the path of the pass.
        banned: tokens that are never guessed.
    """

    def __init__(
        self, round_context: RoundContext, rows: Floats, start: Sequence[int] = (), banned: Sequence[int] = ()
    ) -> None:
        self._round_context = round_context
        self._rows = rows
        self._start = tuple(start)
        self._banned = list(banned)
        self._known: dict[tuple[int, int, Sequence[int]], Sequence[Guess]] = {}

    def reaches(self, path: Sequence[int]) -> bool:
        """Whether the pass guesses after `path`."""
        n = len(self._start)
        return n <= len(path) < n + len(self._rows) and tuple(path[:n]) == self._start

    def guess(self, path: Sequence[int], most: int) -> Sequence[Guess]:
        """See `Drafter.guess`; only for a path that it `reaches`."""
        depth, place = len(path) - len(self._start), self._round_context
        before = place.sampling.recent(place.tokens, path) if place.constraint is None else tuple(path)
        key = depth, most, before
        found = self._known.get(key)
        if found is None:
            row = self._rows[depth]
            if self._banned:
                row = row.copy()
                row[self._banned] = -np.inf
            found = self._known[key] = place.draw(row, path, most)
        return found
