"""ONNX Runtime: what it runs on, sessions, hidden states, pairs with llama.cpp, the command line."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgespec import Device, Finished, Interrupt, Runtime, Sampling, Speculation, Text, load
from edgespec.backends import Model, ort, ort_package
from edgespec.backends.ort import open_model
from edgespec.backends.ort_passes import WIDEST
from edgespec.converters import convert
from edgespec.errors import ClosedError, ContextOverflow, EngineError, MissingPackage, OptionError

from .onnxfolders import Folders, opened
from .onnxrun import Onnx

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


def test_llama_cpp_alone_loads_no_onnxruntime(small_pair: dict[str, Path]) -> None:
    code = (
        "import sys; from pathlib import Path; from edgespec import Device, Interrupt\n"
        "from edgespec.backends import open_model\n"
        f"open_model(Path({str(small_pair['draft'])!r}), Device(), Interrupt()); print('onnxruntime' in sys.modules)"
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


def test_the_price_depends_on_weights_threads_and_width(onnx_folders: Folders, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ort, "_SMALL", 0)

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


def test_a_small_model_takes_one_thread(onnx_folders: Folders) -> None:
    model = open_model(onnx_folders("int4") / "model.onnx", Device(threads=2), Interrupt())
    session = model.session(64)
    assert "threads=1" in session.identity.split("|")
    session.close()
    model.close()


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
    assert "it has no more positions" not in done.stderr, "nobody asked for so many"
    done = edgespec("check", *asked, "--backend", "llama")
    assert done.returncode == 1
    assert "is a model for the backend onnx or openvino, not for llama" in done.stderr


def test_what_is_not_as_asked_for_is_told(onnx_folders: Folders) -> None:
    done = edgespec("chat", onnx_folders("int4"), "--ctx", "5000", "-p", "one", "--max-tokens", "2", "--draft", "none")
    assert done.returncode == 0, done.stderr
    assert "holds 2048 tokens and not 5000: it has no more positions" in done.stderr


def test_tune_takes_onnx_models(onnx_folders: Folders) -> None:
    done = edgespec("tune", onnx_folders("int4"), "--draft", onnx_folders("int8"), "--budget", "1", "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["implausible"] or told["threads"]["best"] >= 1
