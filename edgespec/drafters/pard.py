"""A draft model trained to guess several tokens in one pass: PARD (An et al. 2025, arXiv 2504.18583).

The pass reads the tokens committed since the last one and, after them, one mask token for each further guess. The row
after the last real token is that of an autoregressive step; the row after the i-th mask is the distribution of the
i-th token from there, not knowing those between. The masks are dropped from the cache by the next pass.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from ..backends import Session
from ..errors import ClosedError
from ..types import Guess, Round
from ..verify import RoundContext
from .block_rows import BlockRows
from .draft_session import DraftSession


class PardDrafter:
    """Drafts blocks with a session of its own.

    Args:
        session: of the draft model, whose vocabulary is the target's, except for padding.
        vocab: the size of the target's vocabulary.
        mask: the token that stands for one not known; it is never guessed.
        block_prices: measured seconds of a pass that guesses 1, 2, ... tokens; as many as it guesses at most.
        reading_price: seconds that a token of a long text should take to read.
    """

    name = "pard"

    def __init__(
        self,
        session: Session,
        vocab: int,
        mask: int,
        block_prices: Sequence[float],
        reading_price: float = math.inf,
    ) -> None:
        self.step_price = block_prices[0]
        self.reading_price = reading_price
        self.block_prices = tuple(block_prices)
        self._session = DraftSession(session, vocab)
        self._mask = mask
        self._banned = (mask,) if mask < vocab else ()
        self._planned = len(block_prices)
        self._round_context: RoundContext | None = None
        self._block: BlockRows | None = None

    def held(self, context: Sequence[int]) -> int:
        return self._session.held(context)

    def begin(self, round_context: RoundContext) -> None:
        self._round_context = round_context
        self._session.begin(round_context.tokens)
        self._planned, self._block = len(self.block_prices), None

    def plan(self, guesses: int) -> None:
        self._planned = max(1, min(guesses, len(self.block_prices)))

    def guess(self, path: Sequence[int], most: int) -> Sequence[Guess]:
        if self._round_context is None:
            raise ClosedError("guess was called before begin; call begin with the context first")
        if path and self._round_context.is_eog(path[-1]):
            return ()
        if self._block is None or not self._block.reaches(path):
            if not self._session.can_pass(path):
                return ()
            rows = self._session.rows(path, (self._mask,) * (self._planned - 1))
            self._block = BlockRows(self._round_context, rows, path, self._banned)
        return self._block.guess(path, most)

    def observe(self, round: Round) -> None:  # noqa: A002
        """Nothing to do: `begin` gets all committed tokens."""

    def close(self) -> None:
        self._session.close()
