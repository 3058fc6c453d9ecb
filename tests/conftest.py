"""Fixtures for all tests. None touches the user's cache."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import huggingface_hub.constants
import numpy as np
import pytest

from edgespec.backends import Device, Interrupt, Model, Vocabulary, open_model
from edgespec.backends import llama_library as llamacpp
from edgespec.backends.machine import OtherPrograms
from edgespec.backends.toy import Bytes, ngram_rule
from edgespec.controller.expansion import Expansion
from edgespec.converters import convert
from edgespec.grammar.reading import READERS
from edgespec.models.hub import Hub
from edgespec.prices import engine_comparison
from edgespec.types import Floats

from . import checkpoints
from .helpers import Clock
from .hubfiles import FILES, REPO
from .hubserver import StandIn, serving
from .small_pair import SMALL_PAIR
from .toy_runtime import AtWork, Gate, Reader, opened
from .vocabularies import KINDS


def _find_benchmarks() -> None:
    """Let tests import `benchmarks`, which is no part of any install, where it lies beside them. By its place and not
    by the path: with the repository there, `edgespec` itself might be found in it instead of the install."""
    init = Path(__file__).parents[1] / "benchmarks" / "__init__.py"
    spec = spec_from_file_location("benchmarks", init, submodule_search_locations=[str(init.parent)])
    if init.is_file() and spec is not None and spec.loader is not None:
        sys.modules["benchmarks"] = module = module_from_spec(spec)
        spec.loader.exec_module(module)


_find_benchmarks()
# Some tests import onnxruntime by themselves, and on processors with AMX llama.cpp has to come before it (amx.py).
llamacpp.bindings()


@pytest.fixture(scope="session", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """EDGESPEC_CACHE for the whole session: a folder of its own. So is the place of what was typed without it."""
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EDGESPEC_CACHE", str(folder))
        patch.setenv("EDGESPEC_CONFIG", "")
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        yield folder


@pytest.fixture(scope="module", autouse=True)
def no_reader() -> Iterator[None]:
    """The processes that read grammars end with the module that started them: others count processes."""
    yield
    READERS.close()


@pytest.fixture(scope="session", autouse=True)
def quiet() -> Iterator[None]:
    """Prices are kept whatever else runs beside the tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(OtherPrograms, "busy", property(lambda _self: False))
        yield


@pytest.fixture(scope="session", autouse=True)
def one_engine() -> Iterator[None]:
    """ONNX models run in ONNX Runtime where a test names no engine; which is faster depends on the machine."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine_comparison, "installed", lambda engine: engine != "openvino")
        yield


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """EDGESPEC_CACHE for one test: nothing is there yet."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("EDGESPEC_CACHE", str(folder))
    return folder


@pytest.fixture
def worths(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What a second was worth in each round, in tokens."""
    found = list[float]()
    ask_free, value_time = Expansion.ask_free, Expansion.value_time

    def recorded(expansion: Expansion, rate: float) -> None:
        found.append(rate)
        value_time(expansion, rate)

    def asked(expansion: Expansion) -> None:
        ask_free(expansion)
        found.pop()  # while the free drafters are asked, it is not known yet

    monkeypatch.setattr(Expansion, "ask_free", asked)
    monkeypatch.setattr(Expansion, "value_time", recorded)
    return found


@pytest.fixture(scope="session")
def small_pair() -> dict[str, Path]:
    """The files of the trained pair of the tests: `target` and `draft`."""
    return {"target": SMALL_PAIR.target, "draft": SMALL_PAIR.drafts[0]}


@pytest.fixture(scope="session")
def small_target(small_pair: dict[str, Path]) -> Iterator[Model]:
    """The target of the small pair, loaded once. Tests open sessions of their own."""
    model = open_model(small_pair["target"], Device(threads=2), Interrupt())
    yield model
    model.close()


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small random checkpoint with the tokenizer of a chat model, and with tokens enough for any test's numbers."""
    folder = tmp_path_factory.mktemp("checkpoint") / "small"
    config = {"max_position_embeddings": 2048}
    return checkpoints.llama(folder, tokenizer="qwen2", padding=4096, dtype="F32", config=config)


@pytest.fixture(scope="session")
def small_llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint as small as they come."""
    return checkpoints.llama(tmp_path_factory.mktemp("pairs") / "source")


@pytest.fixture(scope="session")
def onnx_folders(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of that checkpoint as an ONNX model, by quantization; converted when first asked for."""
    folder = tmp_path_factory.mktemp("onnx")

    def converted(quantization: str) -> Path:
        if not (output := folder / quantization).exists():
            list(convert(checkpoint, output, fmt="onnx", quantization=quantization))
        return output

    return converted


@pytest.fixture(scope="session")
def onnx_target(onnx_folders: Callable[[str], Path]) -> Iterator[Model]:
    """The same in fp32, loaded once. Tests open sessions of their own."""
    model = open_model(onnx_folders("fp32"), Device(threads=1), Interrupt())
    yield model
    model.close()


@pytest.fixture(scope="session")
def openvino_target(onnx_folders: Callable[[str], Path]) -> Iterator[Model]:
    """The same in OpenVINO."""
    model = open_model(onnx_folders("fp32"), Device(threads=1, backend="openvino"), Interrupt())
    yield model
    model.close()


@pytest.fixture
def copied(onnx_folders: Callable[[str], Path], tmp_path: Path) -> Path:
    """The int4 model's folder, to be damaged."""
    return Path(shutil.copytree(onnx_folders("int4"), tmp_path / "copied"))


@pytest.fixture
def at_work() -> Iterator[AtWork]:
    """A runtime in the middle of the target's pass over the 120th token, in another thread."""
    gate = Gate(ngram_rule(250, order=2, seed=5), 120)  # it never says an end

    def rule(context: Sequence[int]) -> Floats:
        row: Floats = np.full(Bytes.size, -20, dtype=np.float32)
        row[:250] = gate(context)
        return row

    runtime, model = opened(rule, context=200, drafters=(), k=0)
    reader = Reader(lambda: runtime.complete("a" * 100))
    assert gate.reached.wait(20)
    yield runtime, model, gate, reader
    gate.go_on.set()
    reader.join(20)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The engine's clock, moved by priced sessions alone: by the real one no price here would mean anything."""
    clock = Clock()
    monkeypatch.setattr("edgespec.engine.time", clock)
    return clock


@pytest.fixture
def stand_in() -> Iterator[StandIn]:
    """A hub with one repository."""
    with serving({REPO: dict(FILES)}) as hub:
        yield hub


@pytest.fixture
def hub(stand_in: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hub:
    """The client of `stand_in`, impatient, with a cache of its own."""
    for name in ("HF_HUB_ETAG_TIMEOUT", "HF_HUB_DOWNLOAD_TIMEOUT"):
        monkeypatch.setattr(huggingface_hub.constants, name, 2)
    # It writes whole chunks only, so what is smaller is lost when the connection is.
    monkeypatch.setattr(huggingface_hub.constants, "DOWNLOAD_CHUNK_SIZE", 10_000)
    monkeypatch.setattr("huggingface_hub.file_download.time.sleep", lambda _seconds: None)
    return Hub(stand_in.endpoint, tmp_path / "hub")


@pytest.fixture(scope="session")
def vocabularies(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mapping[str, Vocabulary]]:
    """Vocabularies of four kinds, each trained on the same text, and so with different tokens."""
    folder = tmp_path_factory.mktemp("vocabularies")
    models: dict[str, Model] = {}
    for kind in KINDS:
        output = folder / f"{kind}.gguf"
        for _ in convert(checkpoints.llama(folder / kind, tokenizer=kind), output, quantization="f16"):
            pass
        models[kind] = open_model(output, Device(threads=1), Interrupt())
    yield {kind: model.vocabulary for kind, model in models.items()}
    for model in models.values():
        model.close()
