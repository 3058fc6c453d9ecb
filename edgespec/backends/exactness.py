"""Exactness: the logits of a token do not depend on what else is decoded in the same pass."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from . import Session

_HELD = (0, 67)  # tokens in the cache before the passes that are tested
_TIMES = (2, 3, 4, 8)  # their widths, as multiples of the padding's


class Exactness:
    """How the passes of a model are padded, and the test whether that suffices.

    Args:
        width: every pass is padded to a multiple of this number of tokens; 0 for no padding.
    """

    def __init__(self, width: int) -> None:
        self.width = width
        #: The most tokens of padding in a pass. The cache and the position embeddings need room for them, too.
        self.most_padding = max(0, width - 1)
        self._steady = True
        self._tested = 0  # the tokens of the longest session that was tested

    @property
    def key(self) -> str:
        """The part of a session's identity that tells padded passes from others; empty without padding."""
        return f"|exact={self.width}" if self.width else ""

    @property
    def notices(self) -> Sequence[str]:
        """Messages for the user."""
        if self._steady:
            return ()
        notice = (
            f"on this machine logits depend on the width of passes, so all are {self.width} tokens wide and drafts at "
            f"most {self.width - 1} long"
        )
        return (notice,)

    def rounded_up(self, tokens: int) -> int:
        """The tokens of a pass over `tokens` tokens and its padding."""
        return -(-tokens // self.width) * self.width if self.width else tokens

    def rounded_down(self, tokens: int) -> int:
        """The most tokens of a pass that has at most `tokens`, of which there must be at least `width`."""
        return tokens // self.width * self.width if self.width else tokens

    def limit(self, session: Session) -> None:
        """Give every decode of `session` the same width if logits depend on the width.

        The first session of a model is tested, and a later one if the first was too short for all tests. It must be
        empty, and is empty afterwards.

        Raises:
            EngineError, Interrupted: as `Session.decode`.
        """
        if not self.width:
            return
        needed = min(session.context, _HELD[-1] + _TIMES[-1] * self.width)
        if self._steady and self._tested < needed:
            self._steady, self._tested = is_steady(session, self.width), needed
        if not self._steady:
            session.widest = self.width


def is_steady(session: Session, exact: int) -> bool:
    """Whether a token's logits in passes of 1, 2, 3, 4 and 8 times `exact` tokens are the same to the last bit, as far
    as these passes fit into the session.

    The session must be empty, and is empty afterwards. The engine chooses its kernels by width and processor; on
    x86-64 with VNNI all even widths gave the same bits.
    """
    for held in _HELD:
        most = min(_TIMES[-1] * exact, session.context - held)
        wider = [times * exact for times in _TIMES if (times - 1) * exact < most]  # the last one perhaps with padding
        if not wider:
            continue
        tokens = [1 + i % (session.vocab - 1) for i in range(held + most)]
        session.prefill(tokens[:held])
        first = session.decode(tokens[held : held + exact]).copy()
        for width in wider:
            session.rollback(held)
            rows = session.decode(tokens[held : held + width])[:exact]
            if not np.array_equal(rows, first):
                session.rollback(0)
                return False
        session.rollback(0)
    return True
