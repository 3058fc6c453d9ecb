"""The embeddings and outputs of a head's target, read from each of its formats."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from edgespec.converters import convert
from edgespec.converters.head_target import HeadTarget
from edgespec.converters.stored_tensor import StoredTensor
from edgespec.errors import ConversionError
from edgespec.types import Floats

from . import checkpoints
from .eagle3_cases import values

_LIMITS = {"": 0.0, "f32": 0.0, "f16": 1e-3, "q8_0": 2e-2, "q6_k": 0.1, "q4_k_m": 0.3, "iq4_nl": 0.3, "fp32": 0.0,
           "fp16": 1e-3, "int8": 2e-2, "int4": 0.3, "int4-b32": 0.3, "r8": 2e-2}  # fmt: skip
_WIDTH = 256  # of rows that llama.cpp's types of 256 numbers take


def read(stored: StoredTensor, weights: int = 5000) -> Floats:
    """All rows, a few at a time."""
    return np.concatenate([stored.float32(block) for block in stored.blocks(weights=weights)])


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("targets")
    for name, tied in (("tied", True), ("apart", False)):
        checkpoints.llama(folder / name, layers=1, hidden=_WIDTH, heads=4, tied=tied, dtype="F32")
    return folder


@pytest.mark.parametrize("tied", ["tied", "apart"])
@pytest.mark.parametrize("quantization", _LIMITS)
def test_matrices(sources: Path, tied: str, quantization: str, tmp_path: Path) -> None:
    source = target = sources / tied
    if quantization:
        fmt = "onnx" if quantization.startswith(("fp", "int", "r8")) else "gguf"
        target = tmp_path / ("model.gguf" if fmt == "gguf" else "model")
        list(convert(source, target, fmt=fmt, quantization=quantization))
    original = values(source)
    embedding = original["model.embed_tokens.weight"]
    output = original["lm_head.weight"] if tied == "apart" else embedding
    described = HeadTarget.of(target)
    assert (described.tokens, described.width, described.layers) == (*embedding.shape, 1)
    limit = _LIMITS[quantization]
    for stored, expected in ((described.weights.embedding(), embedding), (described.weights.output(), output)):
        assert stored.shape == expected.shape
        found = read(stored)
        np.testing.assert_allclose(found, expected, atol=1e-9 + limit * np.abs(expected).max())
        np.testing.assert_array_equal(read(stored.rows(range(100, 290))), found[100:290])
        np.testing.assert_array_equal(read(stored.rows(range(100, 290)).rows(range(7, 9))), found[107:109])
    assert not described.weights.scaling()


def test_one_target_in_three_forms(sources: Path, tmp_path: Path) -> None:
    source = sources / "apart"
    list(convert(source, tmp_path / "model.gguf"))
    list(convert(source, tmp_path / "model", fmt="onnx"))
    found = [HeadTarget.of(path) for path in (source, tmp_path / "model.gguf", tmp_path / "model")]
    assert len({tuple(each.labels.items()) for each in found}) == 1
    assert len({each.control for each in found}) == 1
    assert found[0].control


def test_truncated_weights(sources: Path, tmp_path: Path) -> None:
    list(convert(sources / "tied", tmp_path / "model.gguf", quantization="q8_0"))
    stored = HeadTarget.of(tmp_path / "model.gguf").weights.output()
    (tmp_path / "model.gguf").write_bytes((tmp_path / "model.gguf").read_bytes()[: stored.offset + 100])
    with pytest.raises(ConversionError, match="ends inside token_embd"):
        read(stored)
