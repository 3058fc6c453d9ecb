"""OpenVINO: models of `convert --to onnx` with paged attention, their sessions, and what it cannot compute."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgespec import Device, Finished, Interrupt, Runtime, Sampling, Speculation, Text, load
from edgespec.backends import Model, Session, open_model, openvino_package, openvino_weights
from edgespec.backends.openvino import OpenvinoModel
from edgespec.converters import convert
from edgespec.errors import MissingPackage, ModelFileError, OptionError

from . import family_checkpoints
from .onnxfolders import Folders, refused
from .onnxrun import Onnx
from .openvinomodels import PROMPT, opened
from .reference import Reference
from .test_llama_exact import plainly, speculatively

FAMILIES = [
    kind
    for kind in family_checkpoints.CONFIGS
    if kind not in {*family_checkpoints.GGUF_ONLY, *family_checkpoints.RECURRENT, *family_checkpoints.SPARSE, "gemma2"}
]


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
    assert device.of_draft(gguf).beside == "openvino"
    assert [Device(backend=each).of_draft(gguf).beside for each in ("auto", "llama")] == ["auto", "auto"]
    assert device.of_draft(onnx_folders("fp32")).backend == "openvino"
    assert Device(backend="openvino", draft_backend="onnx").of_draft(onnx_folders("fp32")).backend == "onnx"
    with pytest.raises(OptionError, match="no backend 'tpu'"):
        Device(draft_backend="tpu")
    with pytest.raises(ModelFileError, match="for the backend llama, not for openvino"):
        opened(gguf)


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
