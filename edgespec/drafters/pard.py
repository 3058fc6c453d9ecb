"""A draft model trained to guess several tokens in one pass: PARD (An et al. 2025, arXiv 2504.18583).

The pass reads the tokens committed since the last one and, after them, one mask token for each further guess. The row
after the last real token is that of an autoregressive step; the row after the i-th mask is the distribution of the
i-th token from there, not knowing those between. The masks are dropped from the cache by the next pass.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..backends import Session
from ..types import Guess
from ..verify import RoundContext
from .block_rows import BlockRows
from .model import ModelDrafter


class PardDrafter(ModelDrafter):
    """Drafts blocks with a session of its own.

    Args:
        session: of the draft model, whose vocabulary is the target's, except for padding.
        vocab: the size of the target's vocabulary.
        mask: the token that stands for one not known; it is never guessed.
        block_prices: measured seconds of a pass that guesses 1, 2, ... tokens; as many as it guesses at most.
    """

    name = "pard"

    def __init__(self, session: Session, vocab: int, mask: int, block_prices: Sequence[float]) -> None:
        super().__init__(session, vocab, block_prices[0])
        self.block_prices = tuple(block_prices)
        self._mask = mask
        self._planned = len(block_prices)
        self._block: BlockRows | None = None

    def begin(self, round_context: RoundContext) -> None:
        super().begin(round_context)
        self._planned, self._block = len(self.block_prices), None

    def plan(self, guesses: int) -> None:
        self._planned = max(1, min(guesses, len(self.block_prices)))

    def guess(self, path: Sequence[int], most: int) -> Sequence[Guess]:
        round_context = self._begun()
        if path and round_context.is_eog(path[-1]):
            return ()
        if self._block is None or not self._block.reaches(path):
            if not self._can_pass(path):
                return ()
            self._block = self._passed(round_context, path)
        return self._block.guess(path, most)

    def _passed(self, round_context: RoundContext, path: Sequence[int]) -> BlockRows:
        """The rows of a pass after `path`: as many as planned and as the context has room for."""
        room = self._session.context - len(round_context.tokens) - len(path)
        missing = self._missing(round_context.tokens, path)
        masks = max(0, min(self._planned - 1, room, self._session.widest - len(missing)))
        rows = self._rows((*missing, *[self._mask] * masks), 1 + masks)
        banned = (self._mask,) if self._mask < self._vocab else ()
        return BlockRows(round_context, rows, path, banned)
