"""A draft model with the target's vocabulary (Leviathan et al. 2023, Chen et al. 2023)."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ..backends import Session
from ..errors import ClosedError
from ..types import Guess, Round
from ..verify import RoundContext
from .draft_session import DraftSession


class ModelDrafter:
    """Drafts with a session of its own.

    Args:
        session: of the draft model, whose vocabulary is the target's, except for padding.
        vocab: the size of the target's vocabulary; no token beyond it is guessed.
        step_price: measured seconds of a pass of the draft model.
        name: another name, for a draft model of another kind.
        reading_price: seconds that a token of a long text should take to read.
    """

    name = "model"

    def __init__(
        self, session: Session, vocab: int, step_price: float = 0.0, name: str = "", reading_price: float = math.inf
    ) -> None:
        self.name = name or self.name
        self.step_price = step_price
        self.reading_price = reading_price
        self._session = DraftSession(session, vocab)
        self._round_context: RoundContext | None = None

    def held(self, context: Sequence[int]) -> int:
        return self._session.held(context)

    def begin(self, round_context: RoundContext) -> None:
        self._round_context = round_context
        self._session.begin(round_context.tokens)

    def guess(self, path: Sequence[int], most: int) -> Sequence[Guess]:
        if self._round_context is None:
            raise ClosedError("guess was called before begin; call begin with the context first")
        if (path and self._round_context.is_eog(path[-1])) or not self._session.can_pass(path):
            return ()
        return self._round_context.draw(self._session.rows(path)[-1], path, most)

    def observe(self, round: Round) -> None:  # noqa: A002
        """Nothing to do: `begin` gets all committed tokens."""

    def close(self) -> None:
        self._session.close()
