"""Mixtures of experts: their passes are measured with ordinary text."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from edgespec import Device, Interrupt, load
from edgespec.backends import open_model
from edgespec.backends.llama_session import LlamaSession
from edgespec.prices import sample_text
from edgespec.tools.tuning import opener, tune

from . import windowed

THREADS = Device(context=512, threads=1)


@pytest.fixture
def experts(tmp_path: Path) -> Path:
    return windowed.write(tmp_path / "experts.gguf", "gpt-oss", expert_used_count=1)


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """The tokens of all decodes."""
    passes: list[list[int]] = []
    decode = LlamaSession.decode

    def reading(session: LlamaSession, tokens: Sequence[int], tree: Any = None) -> Any:
        passes.append([*tokens])
        return decode(session, tokens, tree)

    monkeypatch.setattr(LlamaSession, "decode", reading)
    return passes


def is_text(passes: Sequence[Sequence[int]], path: Path) -> bool:
    """Whether all passes are stretches of the text, or go on at its beginning after its end."""
    with closing(open_model(path, Device(threads=1), Interrupt())) as model:
        text = sample_text(model.vocabulary)
    assert len(text) > 500
    around = ",".join(map(str, [*text, *text[:64]]))
    return all(",".join(map(str, each)) in around for each in passes)


@pytest.mark.usefixtures("own_cache")
def test_prices_are_measured_with_text(experts: Path, read: list[list[int]]) -> None:
    """At the first load, and when those that are kept are scaled to the machine at the next."""
    for passes in (20, 3):
        read.clear()
        load(experts, experts, device=THREADS).close()
        assert len(read) >= 2 * passes
        assert is_text(read, experts)
        assert len(set(map(tuple, read))) >= passes, "not always the same"


@pytest.mark.usefixtures("own_cache")
def test_tuning_measures_with_text(experts: Path, read: list[list[int]]) -> None:
    assert list(tune(opener(experts, {experts: THREADS}, THREADS, Interrupt()), [1], budget=1.0))
    assert len(read) > 20
    assert is_text(read, experts)
