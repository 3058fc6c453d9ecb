"""What a load takes is given back: by `close`, though the runtime lives on, and by a load that is refused late."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from edgespec import Device, OptionError, Speculation, load
from edgespec.backends import ort
from edgespec.backends.llama_library import bindings
from edgespec.backends.ort_cache import OrtCache
from edgespec.errors import EdgespecError

Folders = Callable[[str], Path]
SMALL = Device(threads=1, context=64)
#: Speculation that the pair turns out not to allow once it is open.
LATE = (
    (SMALL, Speculation(drafters=("cross-vocabulary",))),
    (Device(threads=1, context=64, exact=8), Speculation(k=60)),
)


@pytest.fixture
def native(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How many of llama.cpp's models and contexts are open."""
    low, found = bindings(), Counter[str]()

    def count(name: str, what: str, by: int) -> None:
        real = getattr(low, name)

        def counted(*arguments: Any) -> Any:
            result = real(*arguments)
            found[what] += by if by < 0 or result else 0
            return result

        monkeypatch.setattr(low, name, counted)

    for name, what, by in (
        ("llama_model_load_from_file", "models", 1),
        ("llama_model_free", "models", -1),
        ("llama_init_from_model", "contexts", 1),
        ("llama_free", "contexts", -1),
    ):
        count(name, what, by)
    return found


@pytest.mark.parametrize(("device", "speculation"), LATE)
@pytest.mark.parametrize("draft", [False, True])
def test_a_gguf_that_is_refused_late_is_freed(
    small_pair: dict[str, Path], native: Counter[str], device: Device, speculation: Speculation, draft: bool
) -> None:
    with pytest.raises(OptionError):
        load(small_pair["target"], small_pair["draft"] if draft else None, device=device, speculation=speculation)
    assert native == {"models": 0, "contexts": 0}


def test_a_gguf_is_freed_by_close(small_pair: dict[str, Path], native: Counter[str]) -> None:
    runtime = load(small_pair["target"], small_pair["draft"], device=SMALL)
    assert native == {"models": 2, "contexts": 2}
    runtime.close()
    assert native == {"models": 0, "contexts": 0}


@pytest.fixture
def alive(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """How many of onnxruntime's sessions and of our caches for them live."""
    references: list[weakref.ref[Any]] = []
    real, begin = ort._load, OrtCache.__init__

    def loaded(*arguments: Any) -> Any:
        session = real(*arguments)
        references.append(weakref.ref(session))
        return session

    def begun(self: OrtCache, *arguments: Any) -> None:
        references.append(weakref.ref(self))
        begin(self, *arguments)

    monkeypatch.setattr(ort, "_load", loaded)
    monkeypatch.setattr(OrtCache, "__init__", begun)

    def count() -> int:
        assert references, "or nothing was seen"
        return sum(reference() is not None for reference in references)

    return count


def test_an_onnx_model_is_freed_by_close(onnx_folders: Folders, alive: Callable[[], int]) -> None:
    runtime = load(onnx_folders("int4"), onnx_folders("int8"), device=SMALL)
    events = list(runtime.complete([5, 6, 7], max_tokens=8))
    assert alive() == 4
    runtime.close()
    assert alive() == 0, "while the runtime lives"
    assert runtime.context == 64
    assert events


def test_nothing_of_a_closed_onnx_model_is_of_use(onnx_folders: Folders) -> None:
    runtime = load(onnx_folders("int4"), device=SMALL)
    vocabulary = runtime.vocabulary
    runtime.close()
    with pytest.raises(EdgespecError, match="closed"):
        vocabulary.tokenize("one")


@pytest.mark.parametrize(("device", "speculation"), [*LATE[:1]])
def test_an_onnx_model_that_is_refused_late_is_freed(
    onnx_folders: Folders, alive: Callable[[], int], device: Device, speculation: Speculation
) -> None:
    with pytest.raises(OptionError):
        load(onnx_folders("int4"), device=device, speculation=speculation)
    assert alive() == 0
