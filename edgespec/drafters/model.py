"""A draft model with the target's vocabulary (Leviathan et al. 2023, Chen et al. 2023)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..backends import Session, common_prefix, require_numbers
from ..errors import ClosedError
from ..types import Floats, Guess, Round
from ..verify import RoundContext

_CATCH_UP = 8  # the most pending tokens that are decoded in one pass; longer ones are prefilled, without logits


class ModelDrafter:
    """Drafts with a session of its own.

    Args:
        session: of the draft model, whose vocabulary is the target's, except for padding.
        vocab: the size of the target's vocabulary; no token beyond it is guessed.
        step_price: measured seconds of a pass of the draft model.
        name: another name, for a draft model of another kind.
    """

    name = "model"

    def __init__(self, session: Session, vocab: int, step_price: float = 0.0, name: str = "") -> None:
        self.name = name or self.name
        self.step_price = step_price
        self._session = session
        self._vocab = vocab
        self._round_context: RoundContext | None = None
        self._in_line = False

    def begin(self, round_context: RoundContext) -> None:
        self._round_context = round_context
        self._in_line = False

    def guess(self, path: Sequence[int], most: int) -> Sequence[Guess]:
        round_context = self._begun()
        context = round_context.tokens
        if (path and round_context.is_eog(path[-1])) or not self._can_pass(path):
            return ()
        return round_context.draw(self._rows(self._missing(context, path))[-1], path, most)

    def observe(self, round: Round) -> None:  # noqa: A002
        """Nothing to do: `begin` gets all committed tokens."""

    def close(self) -> None:
        self._session.close()

    def _begun(self) -> RoundContext:
        if self._round_context is None:
            raise ClosedError("guess was called before begin; call begin with the context first")
        return self._round_context

    def _can_pass(self, path: Sequence[int]) -> bool:
        """Whether a pass can end with the tokens of `path`, after which the cache is ready for it."""
        context = self._begun().tokens
        if len(context) + len(path) > self._session.context or max(path, default=0) >= self._session.vocab:
            return False
        return self._in_line or self._catch_up(context)

    def _missing(self, context: Sequence[int], path: Sequence[int]) -> Sequence[int]:
        """The tokens of `context` and `path` that the cache does not hold, at least the last one. Tokens of other
        paths are rolled back."""
        held = self._session.tokens
        if len(held) < len(context):
            return (*context[len(held) :], *path)
        same = min(len(context) + common_prefix(held[len(context) :], path), len(context) + len(path) - 1)
        if same < len(held):  # it is called once a token, and a rollback says that what is held stays
            self._session.rollback(same)
        return (*context[same:], *path[max(0, same - len(context)) :])

    def _rows(self, tokens: Sequence[int], last: int = 1) -> Floats:
        """Logits over the target's vocabulary after the `last` ones of `tokens`, float32 [last, vocab], -inf for tokens
        that the draft model does not have."""
        rows = require_numbers(self._session.decode(tokens), "draft")[-last:, : self._vocab]
        missing = self._vocab - rows.shape[1]
        return np.pad(rows, ((0, 0), (0, missing)), constant_values=-np.inf) if missing else rows

    def _catch_up(self, context: Sequence[int]) -> bool:
        """Make the cache a prefix of `context` that lacks at least one token and at most a few.

        False if the context has a token that the draft model does not have.
        """
        same = min(common_prefix(self._session.tokens, context), len(context) - 1)
        if max(context[same:]) >= self._session.vocab:
            return False
        self._session.rollback(same)
        if len(context) - same + self._session.owed > _CATCH_UP:
            self._session.prefill(context[same:-1])
        self._in_line = True
        return True
