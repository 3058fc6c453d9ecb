"""The session of a draft model, kept in line with a context that may change at will."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..backends import KeepingSession, Session, common_prefix, require_numbers
from ..types import Floats

# Tokens that are decoded one by one where passes of another width must settle, by the prices of passes on an H200 and
# an H100: of a draft of four layers 0.33 ms each, where a wider pass costs 1.8 with what the passes after it take
# longer; of a 1B in Q8_0 1.3 ms each, and 3.6. So 5 would be best for the small one, 2 for the 1B (3: 0.2 ms more).
_ONE_BY_ONE = 3
_CATCH_UP = 8  # the most pending tokens that are decoded in one pass; longer ones are prefilled, without logits


class DraftSession:
    """Passes after a context and a path.

    Args:
        session: of the draft model, whose vocabulary is the target's, except for padding.
        vocab: the size of the target's vocabulary.
    """

    def __init__(self, session: Session, vocab: int) -> None:
        self._session = session
        self._vocab = vocab
        self._context: Sequence[int] = ()
        self._in_line = False

    def begin(self, context: Sequence[int]) -> None:
        """Passes follow `context` from now on."""
        self._context = context
        self._in_line = False

    def held(self, context: Sequence[int]) -> int:
        """How many tokens at the beginning of `context` need not be computed."""
        same = common_prefix(self._session.tokens, context)
        return max(same, self._session.kept(context)) if isinstance(self._session, KeepingSession) else same

    def can_pass(self, path: Sequence[int]) -> bool:
        """Whether a pass can end with the tokens of `path`; if so, the session is ready for it."""
        if len(self._context) + len(path) > self._session.context or max(path, default=0) >= self._session.vocab:
            return False
        return self._in_line or self._catch_up()

    def rows(self, path: Sequence[int], further: Sequence[int] = ()) -> Floats:
        """Logits over the target's vocabulary after `path` and each of the `further` tokens, of which as many as there
        is room for are read, float32 [1 + read, vocab]; -inf for tokens that the draft model does not have.

        They are valid until the next pass. Only if `can_pass`.
        """
        missing = self._settled(self._missing(path), further)
        room = self._session.context - len(self._context) - len(path)
        read = further[: max(0, min(room, self._session.widest - len(missing)))]
        decoded = self._session.decode((*missing, *read))
        rows = require_numbers(decoded, "draft")[len(missing) - 1 :, : self._vocab]
        lacking = self._vocab - rows.shape[1]
        return np.pad(rows, ((0, 0), (0, lacking)), constant_values=-np.inf) if lacking else rows

    def close(self) -> None:
        """Free the session."""
        self._session.close()

    def _missing(self, path: Sequence[int]) -> Sequence[int]:
        """The tokens of context and path that the cache does not hold, at least the last one. Tokens of other paths are
        rolled back."""
        context, held = self._context, self._session.tokens
        if len(held) < len(context):
            return (*context[len(held) :], *path)
        same = min(len(context) + common_prefix(held[len(context) :], path), len(context) + len(path) - 1)
        if same < len(held):  # it is called once a token, and a rollback says that what is held stays
            self._session.rollback(same)
        return (*context[same:], *path[max(0, same - len(context)) :])

    def _settled(self, missing: Sequence[int], further: Sequence[int]) -> Sequence[int]:
        """What is left of the missing tokens, after passes over one each where these are faster than a wider one."""
        if self._session.settling and not further and len(missing) <= _ONE_BY_ONE:
            for token in missing[:-1]:
                self._session.decode((token,))
            return missing[-1:]
        return missing

    def _in_common(self, context: Sequence[int]) -> int:
        """How many tokens of the session's text stay in `context`, whose last one is always computed."""
        return min(common_prefix(self._session.tokens, context), len(context) - 1)

    def _catch_up(self) -> bool:
        """Make the cache a prefix of the context that lacks at least one token and at most a few.

        False if the context has a token that the draft model does not have.
        """
        context = self._context
        same = self._in_common(context)
        if len(context) - same > _CATCH_UP and isinstance(self._session, KeepingSession):
            self._session.resume(context)
            same = self._in_common(context)
        if max(context[same:]) >= self._session.vocab:
            return False
        self._session.rollback(same)
        if len(context) - same + self._session.owed > _CATCH_UP:
            self._session.prefill(context[same:-1])
        self._in_line = True
        return True
