"""A small model drafts for the large one (Leviathan et al. 2023, Chen et al. 2023)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..backends import Session, common_prefix
from ..types import Draft, Floats, Round
from ..verify import Drawn
from . import Terms

_CATCH_UP = 8  # tokens up to which one decode catches up; logits of longer stretches would only be thrown away


class ModelDrafter:
    """Drafts with a session of its own.

    Args:
        session: the draft model's; it shares the target's vocabulary, though either may be padded further.
        vocab: the target's vocabulary size: no token beyond it is proposed.
        step_price: measured seconds of one of its passes.
    """

    name = "model"

    def __init__(self, session: Session, vocab: int, step_price: float = 0.0) -> None:
        self.step_price = step_price
        self._session = session
        self._vocab = vocab

    def propose(self, context: Sequence[int], terms: Terms) -> Draft:
        room = self._session.context - len(context) + 1
        if min(room, terms.limit) < 1 or not self._catch_up(context):
            return Draft(drafter=self.name)
        tokens: list[int] = []
        drawn: list[Drawn] = []
        pending = context[len(self._session.tokens) :]
        while len(tokens) < min(room, terms.limit) and not (tokens and terms.ends(tokens[-1])):
            guess = terms.draw(self._row(pending), tokens)
            if not terms.another(guess.top):
                break
            tokens.append(guess.token)
            drawn.append(guess)
            pending = (guess.token,)
        q = [guess.q for guess in drawn if guess.q is not None]
        return Draft.chain(tokens, [guess.top for guess in drawn], self.name, q if len(q) == len(tokens) > 0 else None)

    def observe(self, round: Round) -> None:  # noqa: A002
        """The next context says it all."""

    def close(self) -> None:
        self._session.close()

    def _row(self, tokens: Sequence[int]) -> Floats:
        """Logits over the target's vocabulary: biases and penalties may name tokens the draft model lacks."""
        row = self._session.decode(tokens)[-1, : self._vocab]
        missing = self._vocab - len(row)
        return np.pad(row, (0, missing), constant_values=-np.inf) if missing else row

    def _catch_up(self, context: Sequence[int]) -> bool:
        """Make the cache a prefix of `context`, short of it by at least one token and at most a few.

        False where the context holds a token that only the target knows.
        """
        same = min(common_prefix(self._session.tokens, context), len(context) - 1)
        if max(context[same:]) >= self._session.vocab:
            return False
        self._session.rollback(same)
        if len(context) - same > _CATCH_UP:
            self._session.prefill(context[same:-1])
        return True
