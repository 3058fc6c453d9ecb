"""OpenVINO: models of `convert --to onnx` with paged attention, their sessions, and what it cannot compute."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import psutil
import pytest

from edgespec import Device, Finished, Interrupt, Runtime, Sampling, Speculation, Text, load
from edgespec.backends import Model, Session, open_model, openvino, openvino_device, openvino_package, openvino_weights
from edgespec.backends.openvino import OpenvinoModel
from edgespec.backends.openvino_cache import PagedCache
from edgespec.backends.openvino_device import ComputeDevice
from edgespec.converters import convert
from edgespec.errors import ClosedError, EngineError, Interrupted, MissingPackage, ModelFileError, OptionError
from edgespec.testing import check_model

from . import family_checkpoints, irfolders
from .onnxfolders import Folders, refused
from .onnxrun import Onnx
from .reference import Reference
from .test_llama_exact import plainly, speculatively

FAMILIES = [kind for kind in family_checkpoints.CONFIGS if kind not in {*family_checkpoints.GGUF_ONLY, "gemma2"}]
PROMPT = [5, 300, 41, *range(100, 120)]


def opened(folder: Path, interrupt: Interrupt | None = None, **options: Any) -> OpenvinoModel:
    device = Device(**{"threads": 1, "backend": "openvino", **options})
    model = open_model(folder, device, interrupt or Interrupt())
    assert isinstance(model, OpenvinoModel)
    return model


def difference(found: Any, expected: Any) -> float:
    """As a share of the largest logit."""
    return float(np.abs(found - expected).max() / np.abs(expected).max())


# --- what it computes


@pytest.mark.parametrize("kind", FAMILIES)
def test_every_family(kind: str, tmp_path: Path) -> None:
    source = family_checkpoints.make(tmp_path / "source", kind)
    list(convert(source, tmp_path / "out", fmt="onnx", quantization="fp32"))
    model, expected = opened(tmp_path / "out"), Reference(source).logits(PROMPT)
    session = model.session(64)
    assert difference(session.decode(PROMPT), expected) < 0.02
    session.rollback(7)
    assert difference(session.decode(PROMPT[7:8]), expected[7:8]) < 0.02
    session.rollback(5)
    assert difference(session.decode(PROMPT[5:]), expected[5:]) < 0.02
    assert session.can_tree is (kind != "gemma3"), "its window counts rows of the cache, which branches share"
    session.close()
    model.close()


@pytest.mark.parametrize("quantization", ["int8", "int4", "int4-b32", "fp16", "int8-fp16", "int4-fp16"])
def test_every_quantization(onnx_folders: Folders, quantization: str) -> None:
    right = Onnx(onnx_folders(quantization))
    expected = right.feed(PROMPT)
    model = opened(onnx_folders(quantization))
    session = model.session(64)
    found = session.decode(PROMPT)
    # Both engines quantize activations, differently.
    assert np.linalg.norm(found - expected) < 0.1 * np.linalg.norm(expected)
    session.close()
    model.close()


def test_rows_of_an_odd_number_of_blocks(tmp_path: Path) -> None:
    """Zero points of four bits then lie in half a byte more."""
    source = family_checkpoints.make(tmp_path / "source", "llama", hidden_size=96, intermediate_size=160, head_dim=32)
    list(convert(source, tmp_path / "out", fmt="onnx", quantization="int4-b32"))
    model, right = opened(tmp_path / "out"), Onnx(tmp_path / "out")
    session = model.session(64)
    expected = right.feed(PROMPT)
    assert np.linalg.norm(session.decode(PROMPT) - expected) < 0.1 * np.linalg.norm(expected)
    session.close()
    model.close()


def test_a_tree_is_its_branches(openvino_target: Model) -> None:
    tree, alone = openvino_target.session(64), openvino_target.session(64)
    for session in (tree, alone):
        session.prefill(PROMPT)
    nodes, parents = [7, 8, 9, 7, 10, 11, 12], [-1, -1, 0, 1, 2, 0, 3]
    rows = tree.decode(nodes, parents).copy()
    for node in range(len(nodes)):
        path = [node]
        while parents[path[0]] >= 0:
            path.insert(0, parents[path[0]])
        branch = alone.decode([nodes[each] for each in path])
        assert np.abs(rows[node] - branch[-1]).max() < 1e-3, path
        alone.rollback(len(PROMPT))
    tree.rollback(len(PROMPT), [0, 2, 4])
    alone.decode([7, 9, 10])
    assert np.abs(tree.decode([300, 301]) - alone.decode([300, 301])).max() < 1e-3
    tree.close()
    alone.close()


@pytest.mark.parametrize("quantization", ["fp32", "int4"])
def test_hidden_states_of_chosen_layers(onnx_folders: Folders, quantization: str) -> None:
    tokens = [5, 300, 41, 7, 8]
    right = Onnx(onnx_folders(quantization))
    right.feed(tokens)
    model = opened(onnx_folders(quantization))
    session = model.session(64, hidden=(1,))
    session.prefill(tokens[:2])
    assert not session.hidden
    session.decode(tokens[2:])
    assert set(session.hidden) == {1}
    assert session.hidden[1].shape == (3, 64)
    assert difference(session.hidden[1], right.hidden["hidden.1"][2:]) < 0.1
    session.close()
    with pytest.raises(OptionError, match="layers 0 to 1"):
        model.session(64, hidden=(0, 2))
    plain = model.session(64)
    plain.decode([5])
    assert not plain.hidden
    plain.close()
    model.close()


# --- exactness


@pytest.fixture(scope="module", params=["fp32", "int8", "int4"])
def exact(request: pytest.FixtureRequest, onnx_folders: Folders) -> Iterator[OpenvinoModel]:
    model = opened(onnx_folders(request.param), exact=2, threads=2)
    yield model
    model.close()


@pytest.mark.parametrize("length", [1, 2, 30, 577])
def test_speculation_changes_no_bit(exact: OpenvinoModel, length: int) -> None:
    prompt = [5 + i * 31 % 900 for i in range(length)]
    session = exact.session(1024)
    assert not session.can_tree
    plain = plainly(session, prompt, 60)
    said = speculatively(session, prompt, plain.tokens, 0)
    assert said.tokens == plain.tokens
    np.testing.assert_array_equal(said.rows, plain.rows)
    session.close()


def test_without_it_bits_change(onnx_folders: Folders) -> None:
    """A pass over one token has kernels of its own."""
    model = opened(onnx_folders("fp32"))
    session = model.session(256)
    session.prefill(PROMPT)
    one = session.decode([7]).copy()
    session.rollback(len(PROMPT))
    pair = session.decode([7, 8])[:1]
    assert 0 < np.abs(pair - one).max() < 1e-3
    session.close()
    model.close()


# --- interrupting and closing


class Setting:
    """A request that is interrupted in the middle of its passes."""

    def __init__(self, request: Any, interrupt: Interrupt) -> None:
        self._request = request
        self._interrupt = interrupt

    def __getattr__(self, name: str) -> Any:
        return getattr(self._request, name)

    def start_async(self) -> None:
        self._interrupt.set()
        self._request.start_async()


@pytest.mark.parametrize("tree", [None, (-1, 0, 0)])
def test_a_pass_is_cancelled_in_the_middle(onnx_folders: Folders, tree: Sequence[int] | None) -> None:
    interrupt = Interrupt()
    model = opened(onnx_folders("fp32"), interrupt)
    session, other = model.session(64), model.session(64)
    for each in (session, other):
        each.prefill([5, 6, 7])
    right = other.decode([8, 9, 10], tree).copy()
    passes = session._passes
    request = passes._request
    passes._request = Setting(request, interrupt)
    with pytest.raises(Interrupted):
        session.decode([8, 9, 10], tree)
    with pytest.raises(Interrupted):
        session.prefill([8, 9, 10])
    passes._request = request
    interrupt.clear()
    assert session.tokens == [5, 6, 7]
    np.testing.assert_array_equal(session.decode([8, 9, 10], tree), right)
    session.close()
    other.close()
    model.close()


def test_a_prefill_is_cancelled_from_another_thread(onnx_folders: Folders) -> None:
    interrupt = Interrupt()
    model = opened(onnx_folders("fp32"), interrupt)
    session = model.session(2048)
    tokens = [5 + i % 900 for i in range(2000)]
    session.prefill(tokens)
    started = time.perf_counter()
    session.rollback(0)
    session.prefill(tokens)
    whole = time.perf_counter() - started
    session.rollback(3)
    for _attempt in range(20):  # a machine so busy that it is over before the flag is set: once more
        setter = threading.Timer(whole / 2, interrupt.set)
        setter.start()
        try:
            session.prefill(tokens)
        except Interrupted:
            assert list(session.tokens) == tokens[:3]
            break
        else:
            session.rollback(3)
        finally:
            setter.join()
            interrupt.clear()
    else:
        pytest.fail("20 prefills, and none was cancelled in the middle")
    session.close()
    model.close()


@pytest.mark.parametrize("width", [2, 3, 40])
def test_the_passes_after_one_that_was_stopped(onnx_folders: Folders, width: int) -> None:
    """OpenVINO prepares operators ahead of their execution. Those of a pass that was stopped must not be left to the
    next pass of an earlier width: it failed, or computed with the wrong sizes."""
    interrupt = Interrupt()
    model = opened(onnx_folders("int8"), interrupt, threads=2)
    session, other = model.session(1024), model.session(1024, Interrupt())
    tokens = [5 + i % 900 for i in range(512)]
    for each in (session, other):
        each.prefill(PROMPT)
    right = session.decode(tokens[:width]).copy()
    session.rollback(len(PROMPT))
    begun = time.perf_counter()
    session.decode(tokens)
    whole = time.perf_counter() - begun
    stopped = 0
    for attempt in range(40):
        session.rollback(len(PROMPT))
        np.testing.assert_array_equal(session.decode(tokens[:width]), right)
        session.rollback(len(PROMPT))
        setter = threading.Timer(whole * attempt / 40, interrupt.set)
        setter.start()
        try:
            session.decode(tokens)
        except Interrupted:
            stopped += 1
        setter.join()
        interrupt.clear()
        # Sessions share the operators.
        np.testing.assert_array_equal(other.decode(tokens[:width]), right)
        other.rollback(len(PROMPT))
    assert stopped
    session.close()
    other.close()
    model.close()


def test_an_interrupt_that_is_set_stops_loading(onnx_folders: Folders) -> None:
    interrupt = Interrupt()
    interrupt.set()
    with pytest.raises(Interrupted):
        opened(onnx_folders("int4"), interrupt)


def test_closed_is_closed(onnx_folders: Folders) -> None:
    model = opened(onnx_folders("fp32"))
    session = model.session(64)
    session.close()
    with pytest.raises(ClosedError):
        session.decode([5])
    model.close()
    with pytest.raises(ClosedError, match="load it again"):
        model.session(64)


def test_memory_does_not_grow_by_loading(onnx_folders: Folders) -> None:
    """Twelve models that stay take 107 MB, twelve that are closed 0.4 (measured)."""

    def once() -> None:
        model = opened(onnx_folders("fp32"))
        session = model.session(512)
        session.prefill([5] * 300)
        session.close()
        model.close()

    def resident() -> int:
        gc.collect()
        return int(psutil.Process().memory_info().rss)

    for _ in range(4):
        once()
    before = resident()
    for _ in range(12):
        once()
    assert resident() - before < 12e6


# --- pairs


@pytest.fixture(scope="module")
def gguf(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("gguf") / "small.gguf"
    list(convert(checkpoint, output, quantization="f32"))
    return output


ENGINES = ["llama", "onnx", "openvino"]


@pytest.fixture(
    scope="module", params=[("openvino", draft) for draft in ENGINES] + [("llama", "openvino"), ("onnx", "openvino")]
)
def pair(request: pytest.FixtureRequest, gguf: Path, onnx_folders: Folders) -> Iterator[Runtime]:
    target, draft = request.param
    files = {"llama": gguf, "onnx": onnx_folders("fp32"), "openvino": onnx_folders("fp32")}
    device = Device(context=256, threads=1, backend=target, draft_backend=draft)
    with load(files[target], files[draft], device=device) as runtime:
        yield runtime


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=0.9, seed=3)])
def test_pairs_say_what_the_target_says(pair: Runtime, sampling: Sampling) -> None:
    def said(speculation: Speculation) -> tuple[list[int], Finished]:
        tokens: list[int] = []
        for event in pair.complete(list(range(300, 330)), sampling, max_tokens=60, speculation=speculation):
            tokens += event.tokens if isinstance(event, Text) else ()
        assert isinstance(event, Finished)
        return tokens, event

    plain, _ = said(Speculation(k=0))
    tokens, finished = said(Speculation(k=4, drafters=("model",)))
    assert tokens == plain
    assert finished.stats.acceptance_rate > 0.6


def test_a_draft_takes_the_engine_that_opens_its_file(gguf: Path, onnx_folders: Folders) -> None:
    device = Device(backend="openvino")
    assert device.of_draft(gguf).backend == "auto"
    assert device.of_draft(onnx_folders("fp32")).backend == "openvino"
    assert Device(backend="openvino", draft_backend="onnx").of_draft(onnx_folders("fp32")).backend == "onnx"
    with pytest.raises(OptionError, match="no backend 'tpu'"):
        Device(draft_backend="tpu")
    with pytest.raises(ModelFileError, match="for the backend llama, not for openvino"):
        opened(gguf)


# --- devices


class HostMemory:
    """The CPU's memory as that of a device, whose layout only the device knows."""

    def create_tensor(self, kind: Any, shape: Any, _properties: object) -> Any:
        return openvino_package.bindings().Tensor(kind, shape)


@pytest.fixture
def remote(monkeypatch: pytest.MonkeyPatch) -> None:
    """The CPU stands in for a device with a memory of its own."""
    on_cpu = openvino_device.chosen

    def chosen(provider: str, threads: int, group: int) -> ComputeDevice:
        return replace(on_cpu(provider, threads, group), remote=True)

    monkeypatch.setattr(openvino, "chosen", chosen)
    monkeypatch.setattr(ComputeDevice, "memory", lambda _self: HostMemory())


@pytest.mark.usefixtures("remote")
def test_an_ir_model_with_its_cache_in_the_memory_of_a_device(checkpoint: Path, tmp_path: Path) -> None:
    model = opened(irfolders.write(checkpoint, tmp_path / "ir"))
    session = model.session(64)
    assert not session.can_tree
    expected = Reference(checkpoint).logits(PROMPT)
    assert np.linalg.norm(session.decode(PROMPT) - expected) < 0.01 * np.linalg.norm(expected)
    session.close()
    model.close()


@pytest.mark.usefixtures("remote")
def test_a_cache_in_the_memory_of_a_device(onnx_folders: Folders, openvino_target: Model) -> None:
    """Nothing of it is read or moved: rollbacks are to any length, and there are no trees."""
    model = opened(onnx_folders("fp32"), threads=2)
    session, right = model.session(256), openvino_target.session(256)
    assert (session.can_tree, session.leaves, session.reach) == (False, 0, None)
    with pytest.raises(EngineError, match="decodes chains only"):
        session.decode([7, 8], [-1, -1])
    for each in (session, right):
        each.prefill(PROMPT)
    found = [plainly(each, [7], 60) for each in (session, right)]
    assert found[0].tokens == found[1].tokens
    np.testing.assert_allclose(found[0].rows, found[1].rows, atol=1e-2)
    check_model(model, 0.2)
    hidden = model.session(64, hidden=(1,))
    hidden.decode([5])
    assert hidden.hidden[1].shape == (1, 64)
    for each in (session, right, hidden):
        each.close()
    model.close()


@pytest.mark.usefixtures("remote")
def test_exact_mode_takes_the_cpu(onnx_folders: Folders) -> None:
    with pytest.raises(OptionError, match="exact is 2, but passes of equal width may differ"):
        opened(onnx_folders("fp32"), exact=2)


class Port:
    """An input of a compiled model."""

    def __init__(self, shape: Sequence[int], kind: str) -> None:
        self._shape, self._kind = shape, kind

    def get_any_name(self) -> str:
        return "key_cache.0"

    def get_partial_shape(self) -> Any:
        return openvino_package.bindings().PartialShape(list(self._shape))

    def get_element_type(self) -> Any:
        return getattr(openvino_package.bindings().Type, self._kind)


@pytest.mark.parametrize(
    ("shape", "kind", "block"),
    [((-1, 2, 32, 16), "f16", 32), ((-1, 2, 16, 16), "f16", 16), ((-1, 2, 16, 256), "f16", 256)],
)
def test_blocks_of_devices(shape: Sequence[int], kind: str, block: int) -> None:
    cache = PagedCache(_compiled(shape, kind), {"key_cache.0": 32}, 1000, ComputeDevice("CPU", {}))
    assert cache.blocks == -(-1000 // block)


@pytest.mark.parametrize(
    ("shape", "kind"),
    [((-1, 2, 20, 15), "f16"), ((-1, 2, 32, 16), "u8"), ((-1, 2, -1, 16), "f16"), ((-1, 512), "f16")],
)
def test_blocks_of_an_unknown_form(shape: Sequence[int], kind: str) -> None:
    with pytest.raises(
        EngineError, match=r"in a form that edgespec does not know \(key_cache.0 is .*take provider cpu"
    ):
        PagedCache(_compiled(shape, kind), {"key_cache.0": 32}, 1000, ComputeDevice("GPU", {}, remote=True))


def _compiled(shape: Sequence[int], kind: str) -> Any:
    return SimpleNamespace(inputs=[Port(shape, kind)])


class Core:
    """A machine with these devices."""

    def __init__(self, *devices: str) -> None:
        self.available_devices = list(devices)


@pytest.mark.parametrize(
    ("provider", "present", "name"),
    [
        ("auto", ("CPU", "GPU"), "CPU"),
        ("cpu", ("CPU",), "CPU"),
        ("gpu", ("CPU", "GPU"), "GPU"),
        ("gpu", ("CPU", "GPU.0", "GPU.1"), "GPU"),
        ("GPU.1", ("CPU", "GPU.0", "GPU.1"), "GPU.1"),
    ],
)
def test_devices(provider: str, present: Sequence[str], name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openvino_device, "core", lambda: Core(*present))
    found = openvino_device.chosen(provider, 2, 64)
    assert (found.name, found.remote) == (name, name != "CPU")
    assert ("INFERENCE_NUM_THREADS" in found.config) == (name == "CPU")


@pytest.mark.parametrize(
    ("provider", "present", "words"),
    [
        ("gpu", ("CPU", "NPU"), "finds no device 'gpu' here, only cpu; install its driver, or leave provider out"),
        ("gpu.2", ("CPU", "GPU.0", "GPU.1"), "finds no device 'gpu.2' here, only cpu, gpu.0, gpu.1;"),
        ("cuda", ("CPU", "GPU"), "finds no device 'cuda' here, only cpu, gpu;"),
        ("NPU", ("CPU", "GPU", "NPU"), "no paged attention on NPUs.* choose cpu or gpu, or leave"),
        ("", ("CPU",), "finds no device ''"),
    ],
)
def test_devices_that_cannot_be(
    provider: str, present: Sequence[str], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(openvino_device, "core", lambda: Core(*present))
    with pytest.raises(OptionError, match=words) as caught:
        openvino_device.chosen(provider, 2, 64)
    assert "\n" not in str(caught.value)


def test_other_devices(onnx_folders: Folders) -> None:
    opened(onnx_folders("fp32"), provider="cpu").close()
    with pytest.raises(OptionError, match="finds no device 'tpu' here, only cpu"):
        opened(onnx_folders("fp32"), provider="tpu")


@pytest.mark.parametrize("quantization", ["fp32", "int8", "int4"])
def test_on_a_gpu(onnx_folders: Folders, quantization: str) -> None:
    if not [name for name in openvino_package.core().available_devices if name.startswith("GPU")]:
        pytest.skip("OpenVINO has no GPU here")
    expected = Onnx(onnx_folders(quantization)).feed(PROMPT)
    model = opened(onnx_folders(quantization), provider="gpu")
    session = model.session(64)
    found = session.decode(PROMPT)
    assert np.linalg.norm(found - expected) < 0.1 * np.linalg.norm(expected)
    assert not session.can_tree
    session.close()
    check_model(model, 0.5)
    model.close()


# --- what it refuses


def test_without_openvino(onnx_folders: Folders, monkeypatch: pytest.MonkeyPatch) -> None:
    openvino_package.bindings.cache_clear()
    monkeypatch.setitem(sys.modules, "openvino", None)
    with pytest.raises(MissingPackage, match=r"install it with `pip install 'edgespec\[openvino\]'`"):
        opened(onnx_folders("fp32"))
    monkeypatch.undo()
    openvino_package.bindings.cache_clear()


def test_nothing_is_reported_to_its_makers(onnx_folders: Folders, tmp_path: Path) -> None:
    """`import openvino` alone sends an event and writes an identifier into the home folder."""
    code = (
        "import sys\nfrom pathlib import Path\nfrom edgespec import Device, Interrupt\n"
        "from edgespec.backends import open_model\n"
        "open_model(Path(sys.argv[1]), Device(threads=1, backend='openvino'), Interrupt()).close()\n"
        "import openvino\n"
        "print([name for name in sys.modules if 'telemetry' in name and not name.startswith('openvino.tools')])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, onnx_folders("fp32")],
        env={**os.environ, "HOME": str(tmp_path), "USERPROFILE": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "[]\n"
    assert not [path for path in tmp_path.rglob("*") if "intel" in path.name.lower()]


def test_an_openvino_that_is_too_old(onnx_folders: Folders, monkeypatch: pytest.MonkeyPatch) -> None:
    module = openvino_package.bindings()
    openvino_package.bindings.cache_clear()
    monkeypatch.setattr(module, "__version__", "2025.3.0-1234-abc")
    with pytest.raises(MissingPackage, match=r"openvino 2025.3.0 is too old: the backend needs 2026.4 or newer"):
        opened(onnx_folders("fp32"))
    monkeypatch.undo()
    openvino_package.bindings.cache_clear()


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_the_pages_of_the_weights_are_given_back_and_nothing_else(
    onnx_folders: Folders, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that were copied would be lost: with the file unknown, nothing is given back."""
    released: list[tuple[int, int]] = []

    class Libc:
        @staticmethod
        def madvise(start: Any, length: Any, _advice: int) -> None:
            released.append((start.value, length.value))

    monkeypatch.setattr("ctypes.CDLL", lambda _name: Libc)
    folder = onnx_folders("int8")
    model = opened(folder)
    data = (folder / "model.onnx.data").stat().st_size
    assert 0.5 * data < sum(dict(released).values()) < data  # the embedding and the head are the same
    mapped = list(openvino_weights._mappings(folder / "model.onnx.data"))
    assert all(any(first <= start and start + n <= last for first, last in mapped) for start, n in released)
    released.clear()
    model._compiled[()].weights.release(folder / "other")
    assert not released
    model.close()


def test_attention_that_it_cannot_compute(tmp_path: Path) -> None:
    source = family_checkpoints.make(tmp_path / "source", "gemma2")
    list(convert(source, tmp_path / "out", fmt="onnx", quantization="fp32"))
    with pytest.raises(ModelFileError, match=r"GroupQueryAttention.*--backend onnx") as caught:
        opened(tmp_path / "out")
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 600


def test_folders_that_are_not_whole(copied: Path) -> None:
    data = copied / "model.onnx.data"
    data.write_bytes(data.read_bytes()[:-5])
    with pytest.raises(ModelFileError, match="truncated"):
        opened(copied)
    (copied / "model.onnx").write_bytes(b"no model")
    refused(copied / "model.onnx", "not an ONNX model")


def test_the_price_depends_on_the_engine(onnx_folders: Folders) -> None:
    def identity(model: Model) -> str:
        session: Session = model.session(64)
        session.close()
        model.close()
        return session.identity

    found = {identity(opened(onnx_folders("fp32"), threads=threads)) for threads in (1, 2)}
    found.add(identity(opened(onnx_folders("int8"))))
    found.add(identity(open_model(onnx_folders("fp32"), Device(threads=1, backend="onnx"), Interrupt())))
    assert len(found) == 4
