"""Passes padded to even widths: the same bits on ONNX Runtime, whatever is decoded beside a token."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgespec.backends.ort import OrtModel
from edgespec.errors import ContextOverflow, EngineError

from . import onnxfolders
from .test_llama_exact import plainly, speculatively

Folders = Callable[[str], Path]


def opened(folder: Path, exact: int, threads: int = 1) -> OrtModel:
    return onnxfolders.opened(folder, exact=exact, threads=threads)


@pytest.fixture(scope="module", params=["fp32", "int8", "int4", "int4-b32", "r8"])
def folder(request: pytest.FixtureRequest, onnx_folders: Folders) -> Path:
    return onnx_folders(request.param)


@pytest.fixture(scope="module")
def exact(folder: Path) -> Iterator[OrtModel]:
    model = opened(folder, 2, threads=2)
    yield model
    model.close()


@pytest.mark.parametrize("length", [1, 2, 30, 577])
def test_speculation_changes_no_bit(exact: OrtModel, length: int) -> None:
    prompt = [5 + i * 31 % 900 for i in range(length)]
    session = exact.session(1024)
    plain = plainly(session, prompt, 100)
    for seed in range(2):
        said = speculatively(session, prompt, plain.tokens, seed)
        assert said.tokens == plain.tokens
        np.testing.assert_array_equal(said.rows, plain.rows)
    session.close()


@pytest.mark.skipif(platform.machine() not in {"x86_64", "AMD64"}, reason="known of x86-64's kernels alone")
def test_without_it_bits_change(folder: Path) -> None:
    model = opened(folder, 0)
    session = model.session(1024)
    prompt = [5 + i * 31 % 900 for i in range(200)]
    plain = plainly(session, prompt, 40)
    changed = int((speculatively(session, prompt, plain.tokens, 0).rows != plain.rows).any(axis=1).sum())
    session.close()
    model.close()
    assert changed


@pytest.mark.parametrize("exact", [2, 8, 12])
def test_every_pass_is_a_multiple(onnx_folders: Folders, exact: int, monkeypatch: pytest.MonkeyPatch) -> None:
    model = opened(onnx_folders("int4"), exact)
    session = model.session(1200)
    passes = session._passes
    assert passes is not None
    widths: list[int] = []
    run = passes._run

    def noted(n: int, total: int, bias: Any, rows: range) -> None:
        widths.append(n)
        run(n, total, bias, rows)

    monkeypatch.setattr(passes, "_run", noted)
    session.prefill([5] * 7)
    session.prefill([6] * 1001)
    assert session.tokens == [5] * 7 + [6] * 1001, "padding is no text"
    for n in (1, 2, 3, exact, exact + 1, session.widest):
        if n < 100:
            assert session.decode([7] * n).shape == (n, session.vocab)
            session.rollback(1008)
    assert not [width for width in widths if width % exact]
    assert len(widths) >= 7
    assert 500 <= session.widest <= 512
    assert not session.can_tree
    assert session.leaves == 0
    with pytest.raises(EngineError, match="can_tree"):
        session.decode([5, 6], (-1, -1))
    session.close()
    model.close()


@pytest.mark.parametrize(("asked", "holds"), [(256, 256), (2048, 2041), (3000, 2041), (1, 1)])
def test_the_context_ends_where_padding_still_fits(onnx_folders: Folders, asked: int, holds: int) -> None:
    model = opened(onnx_folders("int4"), 8)
    session = model.session(asked)
    assert session.context == holds
    session.prefill([5] * (holds - 1))
    assert len(session.decode([6])) == 1
    with pytest.raises(ContextOverflow):
        session.decode([6])
    session.close()
    model.close()
