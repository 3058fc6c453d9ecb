"""What every engine's sessions do alike: the public laws, for the engines that there are and for the toy."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from edgespec import Device, Interrupt
from edgespec.backends import Model, open_model
from edgespec.converters import mark_exit
from edgespec.errors import ContextOverflow, EngineError
from edgespec.testing import SESSION_LAWS, EngineCase, ToyModel

from .requantize import requantize


@pytest.fixture(scope="module")
def sharp(small_pair: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Model]:
    """The small pair's draft with 32-bit weights, which do not enlarge the rounding of attention."""
    path = requantize(small_pair["draft"], tmp_path_factory.mktemp("sharp") / "draft.gguf", "ALL_F32")
    model = open_model(path, Device(threads=1), Interrupt())
    yield model
    model.close()


@pytest.fixture(scope="module")
def in_parts(onnx_folders: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Model]:
    """An ONNX model of which the first layers draft."""
    folder = tmp_path_factory.mktemp("parts") / "onnx"
    list(mark_exit(onnx_folders("fp32"), folder, 1))
    model = open_model(folder, Device(threads=1, backend="onnx", head=True), Interrupt())
    yield model
    model.close()


@pytest.fixture(scope="module", params=["toy", "llama", "onnx", "onnx in parts", "openvino"])
def engine(request: pytest.FixtureRequest) -> EngineCase:
    if request.param == "toy":
        return EngineCase(ToyModel())
    if request.param == "onnx":
        return EngineCase(request.getfixturevalue("onnx_target"), 1e-4)
    if request.param == "onnx in parts":
        return EngineCase(request.getfixturevalue("in_parts"), 1e-4)
    if request.param == "openvino":
        return EngineCase(request.getfixturevalue("openvino_target"), 0.02)  # its cache has float16
    return EngineCase(request.getfixturevalue("sharp"), 0.06)  # llama.cpp's attention sums in half precision


@pytest.mark.parametrize("law", SESSION_LAWS)
def test_the_law(engine: EngineCase, law: str) -> None:
    SESSION_LAWS[law](engine)


def test_what_does_not_fit_is_told_in_numbers(engine: EngineCase) -> None:
    with engine.session(40) as session:
        session.prefill(engine.text(38))
        for call in (session.decode, session.prefill):
            with pytest.raises(ContextOverflow, match="38 \\+ 3 tokens do not fit the context of 40"):
                call([7, 8, 9])


def test_a_pass_too_wide_for_the_batch_is_told_in_numbers(engine: EngineCase) -> None:
    with engine.session(2048) as session:
        assert session.widest == 512
        with pytest.raises(EngineError, match="at most 512"):
            session.decode([5] * 513)
