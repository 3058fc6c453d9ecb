"""Whether padding suffices for exact passes, and what follows where it does not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from edgespec import Device, Interrupt
from edgespec.backends import exactness
from edgespec.backends.exactness import is_steady
from edgespec.backends.ort import open_model
from edgespec.backends.toy import ToySession, ngram_rule
from edgespec.errors import EngineError
from edgespec.types import Floats

from .onnxfolders import Folders


def test_where_bits_change_all_the_same_every_decode_has_one_width(
    onnx_folders: Folders, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[int] = []

    def unsteady(_session: Any, exact: int) -> bool:
        tried.append(exact)
        return False

    monkeypatch.setattr(exactness, "is_steady", unsteady)
    model = open_model(onnx_folders("int4") / "model.onnx", Device(exact=4, threads=1), Interrupt())
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

    def __init__(self, width: int) -> None:
        super().__init__(ngram_rule(50), 50, context=200)
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
