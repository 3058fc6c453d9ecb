"""Whether padding suffices for exact passes, and what follows where it does not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from edgespec import Device, Interrupt
from edgespec.backends import exactness, open_model
from edgespec.backends.exactness import Exactness, is_steady
from edgespec.backends.toy import ToySession, ngram_rule
from edgespec.errors import EngineError
from edgespec.types import Floats

from .onnxfolders import Folders


@pytest.mark.parametrize("backend", ["onnx", "openvino"])
def test_where_bits_change_all_the_same_every_decode_has_one_width(
    backend: str, onnx_folders: Folders, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[int] = []

    def unsteady(_session: Any, exact: int) -> bool:
        tried.append(exact)
        return False

    monkeypatch.setattr(exactness, "is_steady", unsteady)
    model = open_model(onnx_folders("int4"), Device(exact=4, threads=1, backend=backend), Interrupt())
    for _ in range(2):
        session = model.session(64)
        assert session.widest == 4
        assert session.decode([5, 6]).shape == (2, session.vocab)
        with pytest.raises(EngineError, match="at most 4"):
            session.decode([5] * 5)
        session.close()
    assert tried == [4], "once a model"
    (notice,) = model.notices
    assert "drafts at most 3" in notice
    model.close()


class Blurred(ToySession):
    """Its logits change a little from some width on."""

    def __init__(self, width: int, context: int = 200) -> None:
        super().__init__(ngram_rule(50), 50, context=context)
        self._width = width

    def decode(self, tokens: Any, tree: Any = None) -> Floats:
        rows = super().decode(tokens, tree)
        return np.nextafter(rows, np.float32(100)) if len(tokens) >= self._width else rows


def test_steadiness_is_seen() -> None:
    for width, steady in ((8, False), (15, False), (32, False), (33, True)):
        session = Blurred(width)
        assert is_steady(session, 4) is steady
        assert not session.tokens
    assert max(session.passes) == 32


def test_a_short_session_does_not_answer_for_longer_ones() -> None:
    """One whose context is narrower than the passes that change the bits."""
    passes = Exactness(4)
    short, long, again = Blurred(16, context=15), Blurred(16), Blurred(16)
    passes.limit(short)
    assert short.widest > 4
    assert not passes.notices
    for session in (long, again):
        passes.limit(session)
        assert session.widest == 4
    assert not again.passes, "the first session that was long enough was tested"
    assert passes.notices


def test_widths_that_fit_are_tested_in_a_short_session() -> None:
    assert not is_steady(Blurred(8, context=9), 4)
    assert is_steady(Blurred(8, context=7), 4)
