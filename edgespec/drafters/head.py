"""What drafters with a head over the target's hidden states have in common."""

from __future__ import annotations

from collections.abc import Sequence

from ..backends import Head, require_numbers
from ..errors import ClosedError
from ..types import Guess, Round
from ..verify import RoundContext


class HeadDrafter:
    """Drafts with a head of the target, a pass of the head for each guess; further guesses of one row are free.

    Args:
        head: over the session of the target.
        step_price: measured seconds of a pass of the head.
    """

    name = ""

    def __init__(self, head: Head, step_price: float = 0.0) -> None:
        self.step_price = step_price
        self._head = head
        self._round_context: RoundContext | None = None
        self._in_line = False

    def begin(self, round_context: RoundContext) -> None:
        self._round_context = round_context
        self._in_line = self._head.follows(round_context.tokens)

    def guess(self, path: Sequence[int], most: int) -> Sequence[Guess]:
        if self._round_context is None:
            raise ClosedError("guess was called before begin; call begin with the context first")
        context = self._round_context.tokens
        if not self._in_line or (path and self._round_context.is_eog(path[-1])):
            return ()
        if len(context) + len(path) > self._head.context:
            return ()
        row = self._head.logits(context[-1], path)
        return self._round_context.draw(require_numbers(row[None], "draft")[0], path, most)

    def observe(self, round: Round) -> None:  # noqa: A002
        """Nothing to do: the head follows the target's session."""

    def close(self) -> None:
        self._head.close()
