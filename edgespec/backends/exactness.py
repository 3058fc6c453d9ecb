"""Tests of an engine: whether the logits of a token depend on what else is decoded in the same pass."""

from __future__ import annotations

import numpy as np

from . import Session


def is_steady(session: Session, exact: int) -> bool:
    """Whether a token's logits in passes of 1, 2, 3, 4 and 8 times `exact` tokens are the same to the last bit.

    The session must be empty, and is empty afterwards. The engine chooses its kernels by width and processor; on
    x86-64 with VNNI all even widths gave the same bits.
    """
    for held in (0, 67):
        tokens = [1 + i % (session.vocab - 1) for i in range(held + 8 * exact)]
        if len(tokens) > session.context:
            continue
        session.prefill(tokens[:held])
        first = session.decode(tokens[held : held + exact]).copy()
        for times in (2, 3, 4, 8):
            session.rollback(held)
            rows = session.decode(tokens[held : held + times * exact])[:exact]
            if not np.array_equal(rows, first):
                session.rollback(0)
                return False
        session.rollback(0)
    return True
