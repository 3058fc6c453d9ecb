"""Heads that guess several places from one state of the target: Medusa (Cai et al. 2024, arXiv 2401.10774).

The state of the token before the last committed one is what the target chose the last one from. Head i guesses the
token i places after the last one, not knowing the tokens between. So one pass of the heads makes a draft, and a tree
of their likeliest tokens grows where that pays.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..backends import StateHead
from ..errors import ClosedError
from ..types import Floats, Guess
from ..verify import RoundContext
from .block_rows import BlockRows


class MedusaDrafter:
    """Drafts with heads over the final states of the target's session, which it hears as a `Listener`.

    Args:
        head: of the target.
        vocab: the size of the target's vocabulary.
        step_price: measured seconds of a pass of all heads.
    """

    name = "medusa"

    def __init__(self, head: StateHead, vocab: int, step_price: float = 0.0) -> None:
        self.block_prices = (step_price,) * head.heads
        self._head, self._vocab = head, vocab
        self._state: Floats | None = None  # of the last token heard
        self._heard = 0
        self._round_context: RoundContext | None = None
        self._rows: BlockRows | None = None
        self._closed = False

    @property
    def step_price(self) -> float:
        """Seconds of a pass."""
        return self.block_prices[0]

    @step_price.setter
    def step_price(self, seconds: float) -> None:
        self.block_prices = (seconds,) * len(self.block_prices)

    def last_state(self) -> Floats | None:
        """The last state heard, float32 [width]; None if it was forgotten."""
        return self._state

    def heard(self, start: int, tokens: Sequence[int], rows: Floats) -> None:
        """See `Listener`."""
        self._heard, self._state = start + len(tokens), rows[-1].copy()

    def forget(self, length: int) -> None:
        """See `Listener`."""
        self._heard, self._state = length, None

    def begin(self, round_context: RoundContext) -> None:
        self._round_context, self._rows = round_context, None

    def plan(self, guesses: int) -> None:
        """A pass takes as long for fewer guesses."""

    def guess(self, path: Sequence[int], most: int) -> Sequence[Guess]:
        if self._round_context is None or self._closed:
            raise ClosedError("guess was called before begin, or after close; call begin with the context first")
        context = self._round_context
        if (path and context.is_eog(path[-1])) or len(path) >= len(self.block_prices):
            return ()
        if self._state is None or self._heard != len(context.tokens) - 1:
            return ()
        if self._rows is None:
            self._rows = BlockRows(context, self._logits(self._state))
        return self._rows.guess(path, most)

    def observe(self, round: object) -> None:  # noqa: A002
        """Nothing to do: the states come from the session."""

    def close(self) -> None:
        self._state, self._rows, self._closed = None, None, True

    def _logits(self, state: Floats) -> Floats:
        """The rows of the heads, -inf for all but their likeliest tokens, float32 [heads, vocabulary]."""
        tokens, logs = self._head.guesses(state)
        rows = np.full((len(tokens), self._vocab), -np.inf, np.float32)
        for row, ids, values in zip(rows, tokens, logs, strict=True):
            known = (ids >= 0) & (ids < self._vocab) & np.isfinite(values)
            row[ids[known]] = values[known]
        return rows
