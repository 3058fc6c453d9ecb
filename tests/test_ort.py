"""ONNX Runtime: loading, what it runs on, interrupts, hidden states, pairs with llama.cpp."""

from __future__ import annotations

import gc
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from edgespec import Device, Finished, Interrupt, Runtime, Sampling, Speculation, Text, load, models
from edgespec.backends import Model, ort, ort_package
from edgespec.backends.ort import OrtModel, open_model
from edgespec.backends.ort_file import read
from edgespec.backends.ort_passes import WIDEST
from edgespec.converters import convert
from edgespec.errors import (
    ClosedError,
    ContextOverflow,
    EngineError,
    Interrupted,
    MissingPackage,
    ModelFileError,
    OptionError,
)

from .onnxrun import Onnx

Folders = Callable[[str], Path]


def opened(folder: Path, interrupt: Interrupt | None = None, **options: Any) -> OrtModel:
    return open_model(folder / "model.onnx", Device(threads=1, **options), interrupt or Interrupt())


@pytest.fixture
def copied(onnx_folders: Folders, tmp_path: Path) -> Path:
    """The int4 model's folder, to be damaged."""
    return Path(shutil.copytree(onnx_folders("int4"), tmp_path / "copied"))


# --- files


def refused(path: Path, *words: str) -> None:
    """Opening is an error on one line that names the model, says `words` and a way out."""
    with pytest.raises(ModelFileError) as caught:
        load(path)
    message = str(caught.value)
    assert str(path) in message
    assert all(word in message for word in words), message
    assert "\n" not in message
    assert 30 < len(message) < 600


@pytest.mark.parametrize("size", [0, 100, -1, 1])
def test_weights_that_are_not_whole(copied: Path, size: int) -> None:
    data = copied / "model.onnx.data"
    whole = data.read_bytes()
    data.write_bytes(whole[:size] if size != 1 else whole + b"x")
    refused(copied, f"not {len(whole)}", "truncated")


def test_weights_that_are_missing(copied: Path) -> None:
    (copied / "model.onnx.data").unlink()
    refused(copied, "model.onnx.data")


@pytest.mark.parametrize("content", [b"", b"no model\n" * 50, b"GGUF" + bytes(300), None])
def test_files_that_are_no_model(copied: Path, content: bytes | None) -> None:
    """None stands for the first half of one."""
    file = copied / "model.onnx"
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2] if content is None else content)
    refused(copied)


def test_a_model_of_another_converter(copied: Path) -> None:
    shape = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1])
    out = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1])
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "other", [shape], [out])
    onnx.save_model(helper.make_model(graph), copied / "model.onnx")
    refused(copied, "another converter", "edgespec convert")


def rewritten(folder: Path, **changed: str | None) -> None:
    """Metadata of the model, replaced or, with None, removed."""
    model = onnx.load_model(folder / "model.onnx", load_external_data=False)
    props = {entry.key: entry.value for entry in model.metadata_props}
    props |= {f"edgespec.{key}": value for key, value in changed.items()}
    del model.metadata_props[:]
    helper.set_model_props(model, {key: value for key, value in props.items() if value is not None})
    (folder / "model.onnx").write_bytes(model.SerializeToString())


def test_metadata_that_is_of_tomorrow_or_not_whole(copied: Path) -> None:
    rewritten(copied, format="2")
    refused(copied, "format '2'", "update")
    rewritten(copied, format="1", layers=None)
    refused(copied, "layers")
    rewritten(copied, layers="two")
    refused(copied, "two")


def test_a_graph_that_onnxruntime_refuses(copied: Path) -> None:
    model = onnx.load_model(copied / "model.onnx", load_external_data=False)
    model.graph.node[3].op_type = "Nonsense"
    (copied / "model.onnx").write_bytes(model.SerializeToString())
    refused(copied, "cannot be loaded", "Nonsense")


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("tokenizer.json", None),
        ("tokenizer.json", b"{"),
        ("tokenizer.json", b"[]"),
        ("tokenizer.json", b'{"model": {"type": "BPE"}}'),
        ("tokenizer_config.json", b"nonsense"),
        ("generation_config.json", b"[1]"),
    ],
)
def test_a_tokenizer_that_is_missing_or_broken(copied: Path, name: str, content: bytes | None) -> None:
    (copied / name).unlink(missing_ok=True)
    if content is not None:
        (copied / name).write_bytes(content)
    refused(copied, name if content is not None else "no tokenizer.json")


def test_a_whole_model_opens_by_folder_and_by_file(onnx_folders: Folders) -> None:
    folder = onnx_folders("int4")
    for path in (folder, folder / "model.onnx"):
        with load(path, device=Device(threads=1, context=64)) as runtime:
            assert "int4" in runtime.description
    described = read(folder / "model.onnx")
    assert described.layers == 2
    assert described.data_bytes == (folder / "model.onnx.data").stat().st_size


def test_folders_with_models_of_both_engines(copied: Path, demo: dict[str, Path]) -> None:
    shutil.copy(demo["draft"], copied / "draft.gguf")
    refused(copied, "several models", "draft.gguf", "model.onnx", "--backend")
    for backend, name in (("llama", "llama"), ("onnx", "int4")):
        with load(copied, device=Device(threads=1, context=64, backend=backend)) as runtime:
            assert name in runtime.description.lower() or backend == "llama"
            assert ("int4" in runtime.description) == (backend == "onnx")


def test_a_backend_that_cannot_have_the_file(onnx_folders: Folders, demo: dict[str, Path]) -> None:
    for path, backend in ((onnx_folders("int4"), "llama"), (demo["draft"], "onnx")):
        with pytest.raises(ModelFileError, match=f"not for {backend}"):
            load(path, device=Device(backend=backend))
    with pytest.raises(OptionError, match="no backend 'onix'; there are auto, llama, onnx"):
        Device(backend="onix")


def test_the_draft_beside_a_folder(onnx_folders: Folders, tmp_path: Path) -> None:
    target, draft = tmp_path / "qwen-1.5b", tmp_path / "draft"
    shutil.copytree(onnx_folders("int4"), target)
    draft.mkdir()
    assert models.with_draft(target).draft is None, "a folder without a model"
    shutil.copytree(onnx_folders("int4"), draft, dirs_exist_ok=True)
    assert models.with_draft(target) == (target, draft)
    assert models.with_draft(draft).draft is None
    named = draft.rename(tmp_path / "qwen-1.5b.draft")
    assert models.with_draft(target).draft == named


# --- the package


def test_without_onnxruntime(onnx_folders: Folders, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    ort_package.bindings.cache_clear()
    with pytest.raises(MissingPackage, match="pip install onnxruntime"):
        load(onnx_folders("int4"))


@pytest.mark.parametrize("version", ["1.22.9", "1.9.0", "0.30"])
def test_an_onnxruntime_that_is_too_old(onnx_folders: Folders, monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    monkeypatch.setattr(ort_package.bindings(), "__version__", version)
    ort_package.bindings.cache_clear()
    with pytest.raises(MissingPackage, match=f"{version} is too old.*1.23"):
        load(onnx_folders("int4"))
    monkeypatch.setattr(sys.modules["onnxruntime"], "__version__", "2.0.1+x")
    ort_package.bindings()


def test_llama_cpp_alone_loads_no_onnxruntime(demo: dict[str, Path]) -> None:
    code = (
        "import sys; from pathlib import Path; from edgespec import Device, Interrupt\n"
        "from edgespec.backends import open_model\n"
        f"open_model(Path({str(demo['draft'])!r}), Device(), Interrupt()); print('onnxruntime' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


# --- what it runs on


@pytest.fixture
def no_cuda(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """An onnxruntime that lists CUDA and cannot load it, as it is without a GPU; what it was asked for."""
    asked = []
    known = {"cpu": "CPUExecutionProvider", "cuda": "CUDAExecutionProvider"}
    real = ort._load

    def load_on_cpu(described: Any, provider: str, threads: int, interrupt: Interrupt) -> Any:
        asked.append(provider)
        return real(described, "cpu", threads, interrupt)

    monkeypatch.setattr(ort, "_load", load_on_cpu)
    for module in (ort, ort_package):
        monkeypatch.setattr(module, "providers", lambda: known)
    monkeypatch.setattr(ort_package, "has_nvidia", lambda: True)
    return asked


def test_a_provider_that_does_not_load_is_an_error_where_it_was_asked_for(
    onnx_folders: Folders, no_cuda: list[str]
) -> None:
    with pytest.raises(EngineError, match="cuda could not be loaded"):
        opened(onnx_folders("fp16"), provider="cuda")
    assert no_cuda == ["cuda"]


def test_and_a_notice_where_not(onnx_folders: Folders, no_cuda: list[str]) -> None:
    with load(onnx_folders("fp16"), device=Device(threads=1, context=64)) as runtime:
        assert no_cuda == ["cuda"]
        (notice,) = runtime.notices
        assert "runs on the CPU: cuda could not be loaded" in notice
        assert len(list(runtime.complete([5, 6, 7], max_tokens=3))) > 2


@pytest.mark.parametrize(
    ("quantization", "options"),
    [
        ("fp16", {"provider": "cpu"}),
        ("fp16", {"gpu_layers": 0}),
        ("fp16", {"exact": 2}),
        ("int4", {}),
        ("fp32", {}),
    ],
)
def test_the_cpu_without_a_word(
    onnx_folders: Folders, no_cuda: list[str], quantization: str, options: dict[str, Any]
) -> None:
    model = opened(onnx_folders(quantization), **options)
    assert no_cuda == ["cpu"]
    assert not model.notices
    model.close()


def test_providers_that_cannot_be(onnx_folders: Folders, no_cuda: list[str]) -> None:
    with pytest.raises(OptionError, match="runs on cpu, cuda, not on 'npu'"):
        opened(onnx_folders("int4"), provider="npu")
    with pytest.raises(OptionError, match=r"half precision only.*fp16"):
        opened(onnx_folders("int4"), provider="cuda")
    with pytest.raises(OptionError, match="provider cpu"):
        opened(onnx_folders("fp16"), provider="cuda", exact=4)
    assert not no_cuda


def test_without_a_gpu_nothing_is_tried(
    onnx_folders: Folders, no_cuda: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ort_package, "has_nvidia", lambda: False)
    opened(onnx_folders("fp16")).close()
    assert no_cuda == ["cpu"]


# --- sessions


def test_the_price_depends_on_weights_threads_and_width(onnx_folders: Folders) -> None:
    def identity(quantization: str, threads: int, exact: int = 0) -> str:
        device = Device(threads=threads, exact=exact)
        model = open_model(onnx_folders(quantization) / "model.onnx", device, Interrupt())
        session = model.session(64)
        session.close()
        model.close()
        return session.identity

    kept = [identity("int4", 1), identity("int4", 2), identity("fp32", 1), identity("int4", 1, 2)]
    assert len(set(kept)) == 4
    assert identity("int4", 1) == kept[0], "else every run would measure anew"


def test_a_context_longer_than_the_model_has_positions_for(onnx_folders: Folders) -> None:
    model = opened(onnx_folders("int4"))
    assert model.trained_context == 2048
    session = model.session(5000)
    assert session.context == 2048
    model.session(5000).close()
    (notice,) = model.notices
    assert "2048 tokens and not 5000" in notice
    session.prefill([5] * 2047)
    assert session.decode([6]).shape == (1, session.vocab)
    session.rollback(2040)
    assert session.decode([5] * 8, [-1, *[0] * 7]).shape == (8, session.vocab)
    with pytest.raises(ContextOverflow):
        session.decode([5] * 9)
    session.close()
    model.close()


def test_tokens_that_are_none(onnx_target: Model) -> None:
    session = onnx_target.session(64)
    session.prefill([5, 6])
    for token in (-1, session.vocab, 10**6):
        for call in (session.decode, session.prefill):
            with pytest.raises(EngineError, match="tokens are from 0 to"):
                call([7, token])
    assert session.tokens == [5, 6]
    session.close()


def test_what_the_graph_cannot_compute_is_an_engine_error(onnx_target: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    session = onnx_target.session(64)
    session.prefill([5, 6])
    monkeypatch.setattr(session, "vocab", 10**6)
    with pytest.raises(EngineError, match="ONNX Runtime could not decode 1 tokens after 2"):
        session.decode([10**5])
    assert session.tokens == [5, 6]
    assert len(session.decode([7])) == 1
    session.close()


def test_closed_is_closed(onnx_folders: Folders) -> None:
    model = opened(onnx_folders("int4"))
    session = model.session(64)
    session.decode([5])
    session.close()
    session.close()
    for call in (session.decode, session.prefill):
        with pytest.raises(ClosedError):
            call([5])
    with pytest.raises(ClosedError):
        session.rollback(0)
    model.close()
    model.close()
    with pytest.raises(ClosedError):
        model.session(64)


def test_two_sessions_of_a_model_do_not_meet(onnx_target: Model) -> None:
    left, right = onnx_target.session(64), onnx_target.session(64)
    left.prefill([5, 6, 7])
    alone = left.decode([8]).copy()
    left.rollback(3)
    right.prefill([900, 901, 902, 903, 904])
    right.decode([905, 906])
    np.testing.assert_array_equal(left.decode([8]), alone)
    left.close()
    right.close()


@pytest.mark.parametrize("quantization", ["fp32", "fp16", "r8"])
def test_hidden_states_of_chosen_layers(onnx_folders: Folders, quantization: str) -> None:
    """Those that the graph itself gives; of the last decode, whatever was prefilled since."""
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
    assert session.hidden[1].dtype == (np.float16 if quantization == "fp16" else np.float32)
    atol = 0.05 * float(np.abs(right.hidden["hidden.1"]).max()) if quantization == "fp16" else 1e-4
    np.testing.assert_allclose(session.hidden[1], right.hidden["hidden.1"][2:], atol=atol)
    session.prefill([5])
    assert not session.hidden
    session.decode([5] * 40)  # more rows than before: other buffers
    assert session.hidden[1].shape == (40, 64)
    session.close()
    with pytest.raises(OptionError, match="layers 0 to 1"):
        model.session(64, hidden=(0, 2))
    plain = model.session(64)
    plain.decode([5])
    assert not plain.hidden
    plain.close()
    model.close()


def test_a_long_text_is_prefilled_in_narrower_passes(onnx_target: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that no pass needs much memory for a bias that grows with both."""
    tokens = [5 + n % 700 for n in range(1300)]
    session = onnx_target.session(1400)
    session.prefill(tokens)
    right = session.decode([9]).copy()
    session.rollback(0)
    passes = session._passes  # type: ignore[attr-defined]
    sizes: list[int] = []
    run = passes._run

    def noted(n: int, total: int, bias: Any, rows: int) -> None:
        sizes.append(n)
        run(n, total, bias, rows)

    monkeypatch.setattr(passes, "_run", noted)
    assert passes.widest(0) == WIDEST
    monkeypatch.setattr("edgespec.backends.ort_passes._MOST_BIAS", 100_000)
    session.prefill(tokens)
    assert sum(sizes) == 1300
    assert sizes[0] > sizes[10] > sizes[-2] >= 32
    np.testing.assert_allclose(session.decode([9]), right, atol=1e-4)
    session.close()


# --- interrupting


class Setting:
    """A session of onnxruntime that is interrupted in the middle of its runs."""

    def __init__(self, session: Any, interrupt: Interrupt) -> None:
        self._session = session
        self._interrupt = interrupt

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    def run_with_iobinding(self, binding: Any, options: Any) -> None:
        self._interrupt.set()
        self._session.run_with_iobinding(binding, options)


@pytest.mark.parametrize("tree", [None, (-1, 0, 0)])
def test_a_pass_is_cancelled_in_the_middle(onnx_folders: Folders, tree: Sequence[int] | None) -> None:
    interrupt = Interrupt()
    model = opened(onnx_folders("fp32"), interrupt)
    session, other = model.session(64), model.session(64)
    for each in (session, other):
        each.prefill([5, 6, 7])
    right = other.decode([8, 9, 10], tree).copy()
    assert session._passes is not None
    graph = session._passes._graph
    object.__setattr__(graph, "session", Setting(graph.session, interrupt))
    with pytest.raises(Interrupted):
        session.decode([8, 9, 10], tree)
    with pytest.raises(Interrupted):
        session.prefill([8, 9, 10])
    object.__setattr__(graph, "session", graph.session._session)
    interrupt.clear()
    assert session.tokens == [5, 6, 7]
    np.testing.assert_array_equal(session.decode([8, 9, 10], tree), right)
    session.close()
    other.close()
    model.close()


@pytest.mark.parametrize("share", [0.1, 0.7])
def test_a_prefill_is_cancelled_from_another_thread(onnx_folders: Folders, share: float) -> None:
    interrupt = Interrupt()
    model = opened(onnx_folders("fp32"), interrupt)
    session = model.session(2048)
    session.prefill([5, 6, 7])
    tokens = [5 + i % 900 for i in range(2000)]
    started = time.perf_counter()
    session.prefill(tokens)
    whole = time.perf_counter() - started
    session.rollback(3)
    for _attempt in range(20):  # a machine so busy that it is over before the flag is set: once more
        setter = threading.Timer(share * whole, interrupt.set)
        setter.start()
        started = time.perf_counter()
        try:
            session.prefill(tokens)
        except Interrupted:
            assert session.tokens == [5, 6, 7]
            if time.perf_counter() - started > share * whole / 2:
                break  # it was under way
        else:
            session.rollback(3)
        finally:
            setter.join()
            interrupt.clear()
    else:
        pytest.fail("20 prefills, and none was cancelled in the middle")
    session.close()
    model.close()


def test_an_interrupt_that_is_set_stops_everything(onnx_folders: Folders) -> None:
    interrupt = Interrupt()
    model = opened(onnx_folders("int4"), interrupt)
    session = model.session(64)
    interrupt.set()
    for call in (session.decode, session.prefill):
        with pytest.raises(Interrupted):
            call([5, 6])
    with pytest.raises(Interrupted):
        opened(onnx_folders("int4"), interrupt)
    interrupt.clear()
    assert session.tokens == []
    assert len(session.decode([5, 6])) == 2
    session.close()
    model.close()


def test_an_interrupt_tells_those_that_live() -> None:
    class Told:
        times = 0

        def stop(self) -> None:
            Told.times += 1

    interrupt = Interrupt()
    first, second = Told(), Told()
    interrupt.tell(first)
    interrupt.tell(second)
    interrupt.set()
    assert Told.times == 2
    del first
    gc.collect()
    interrupt.set()
    assert Told.times == 3
    assert second


# --- pairs


@pytest.fixture(scope="module")
def gguf(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same checkpoint for llama.cpp."""
    output = tmp_path_factory.mktemp("gguf") / "small.gguf"
    list(convert(checkpoint, output, quantization="f32"))
    return output


@pytest.fixture(scope="module", params=["onnx drafts", "llama drafts", "both onnx"])
def pair(request: pytest.FixtureRequest, gguf: Path, onnx_folders: Folders) -> Iterator[Runtime]:
    target, draft = {
        "onnx drafts": (gguf, onnx_folders("fp32")),
        "llama drafts": (onnx_folders("fp32"), gguf),
        "both onnx": (onnx_folders("fp32"), onnx_folders("int8")),
    }[request.param]
    with load(target, draft, device=Device(context=256, threads=1)) as runtime:
        yield runtime


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=0.9, seed=3)])
def test_pairs_say_what_the_target_says(pair: Runtime, sampling: Sampling) -> None:
    """Target and draft are one model here, so drafts are mostly right; and they are no model through text."""
    assert "model" in pair.drafters

    def said(speculation: Speculation) -> tuple[list[int], Finished]:
        tokens: list[int] = []
        for event in pair.complete(list(range(300, 330)), sampling, max_tokens=60, speculation=speculation):
            tokens += event.tokens if isinstance(event, Text) else ()
        assert isinstance(event, Finished)
        return tokens, event

    plain, _ = said(Speculation(k=0))
    for speculation in (Speculation(k=4, drafters=("model",)), Speculation()):
        tokens, finished = said(speculation)
        assert tokens == plain
    _, finished = said(Speculation(k=4, drafters=("model",)))
    assert finished.stats.acceptance_rate > 0.6


# --- the command line


def edgespec(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-I", "-c", "from edgespec.cli import main; main()", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_the_command_line_takes_onnx_models(onnx_folders: Folders, tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in ("one two", "I'll book it, it's 2")))
    asked = (onnx_folders("int4"), "--draft", onnx_folders("int8"), "--prompts", prompts, "--max-tokens", "24")
    done = edgespec("check", *asked, "--k", "3", "--exact", "2", "--provider", "cpu", "--backend", "onnx")
    assert done.returncode == 0, done.stderr
    assert "2 identical, 0 near ties, 0 different" in done.stdout
    assert "it has positions for no more" not in done.stderr, "nobody asked for so many"
    done = edgespec("check", *asked, "--backend", "llama")
    assert done.returncode == 1
    assert "is a model for the backend onnx, not for llama" in done.stderr


def test_what_is_not_as_asked_for_is_told(onnx_folders: Folders) -> None:
    done = edgespec("chat", onnx_folders("int4"), "--ctx", "5000", "-p", "one", "--max-tokens", "2", "--draft", "none")
    assert done.returncode == 0, done.stderr
    assert "holds 2048 tokens and not 5000: it has positions for no more" in done.stderr


def test_tune_takes_onnx_models(onnx_folders: Folders) -> None:
    done = edgespec("tune", onnx_folders("int4"), "--draft", onnx_folders("int8"), "--budget", "1", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["threads"]["best"] >= 1


# --- what a model's files may not say


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("layers", "3", "2 layers and not 3"),
        ("layers", "1", "2 layers and not 1"),
        ("layers", "999999999999", "2 layers and not"),
        ("kv_heads", "-2", "kv_heads is '-2', not a positive whole number"),
        ("kv_heads", "4", "past.0.key is"),
        ("head_dim", "0", "not a positive whole number"),
        ("vocabulary", "-1", "not a positive whole number"),
        ("vocabulary", "7", "logits is"),
        ("hidden", "65", "hidden.1 is"),
        ("context", "4096", "rope.cos has 2048 positions and not 4096"),
        ("context", "9" * 5000, "not a positive whole number"),
        ("parameters", "\u0663", "not a positive whole number"),
        ("quantization", "int4-fp16", "numbers of 32 bits"),
    ],
)
def test_metadata_that_the_graph_denies(copied: Path, key: str, value: str, words: str) -> None:
    rewritten(copied, **{key: value})
    refused(copied, words)


def test_metadata_that_is_no_text(copied: Path) -> None:
    file = copied / "model.onnx"
    whole = file.read_bytes()
    file.write_bytes(whole.replace(b"edgespec.layers", b"edgespec.layer\xff"))
    refused(copied, "layers")
    file.write_bytes(whole.replace(b"int4", b"in\xff\xfe"))
    assert "in\ufffd\ufffd" in read(file).summary


def test_a_name_obeys_no_terminal(copied: Path) -> None:
    rewritten(copied, name="a\x1b]0;title\x07b\n")
    assert read(copied / "model.onnx").name == "a]0;titleb"


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "config.json"])
@pytest.mark.parametrize("kind", ["link", "folder", "pipe"])
def test_a_file_that_is_no_file(copied: Path, name: str, kind: str) -> None:
    """A link to nothing was taken for no file, and with it went the chat template; a pipe was waited for."""
    (copied / name).unlink(missing_ok=True)
    no_file(copied / name, kind)
    refused(copied, name, {"link": "link to nothing", "pipe": "a pipe or a device", "folder": "directory"}[kind])


def no_file(path: Path, kind: str) -> None:
    """A link to nothing, a folder or a pipe."""
    if kind == "pipe" and not hasattr(os, "mkfifo"):
        pytest.skip("no pipes with names here")
    if kind == "link":
        path.symlink_to("nowhere")
    elif kind == "folder":
        path.mkdir()
    else:
        os.mkfifo(path)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("tokenizer_config.json", {"eos_token": "\ud800"}),
        ("tokenizer_config.json", {"bos_token": {"content": "a\udfff"}}),
    ],
)
def test_special_tokens_that_are_no_text(copied: Path, name: str, content: dict[str, Any]) -> None:
    """JSON can spell half a character."""
    (copied / name).write_text(json.dumps(content))
    refused(copied, "which is no text")


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("config.json", {"eos_token_id": [10**30, -5, "x"], "bos_token_id": -(10**30)}),
        ("generation_config.json", {"eos_token_id": {}, "temperature": 10**400, "top_p": float("nan"), "top_k": True}),
        ("tokenizer_config.json", {"added_tokens_decoder": [1], "chat_template": 5, "add_bos_token": "x"}),
        ("tokenizer_config.json", {"added_tokens_decoder": {"x": 1}, "chat_template": [1, {"name": 3}]}),
    ],
)
def test_settings_of_odd_types_are_no_settings(copied: Path, name: str, content: dict[str, Any]) -> None:
    (copied / name).write_text(json.dumps(content))
    with load(copied, device=Device(threads=1, context=64)) as runtime:
        assert runtime.sampling == {}
        assert len(list(runtime.complete("one", max_tokens=2))) > 2


def test_added_tokens_of_odd_types(copied: Path) -> None:
    description = json.loads((copied / "tokenizer.json").read_text())
    odd: tuple[Any, ...] = (5, [5], [{"content": []}])
    for added in odd:
        (copied / "tokenizer.json").write_text(json.dumps({**description, "added_tokens": added}))
        refused(copied, "not a sound tokenizer")
