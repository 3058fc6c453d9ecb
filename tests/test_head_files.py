"""Heads in files of their own: what is shown of them, and that they are found beside models of both formats."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

import huggingface_hub.constants
import numpy as np
import onnx
import pytest

import edgespec
from edgespec import Device, Sampling, Speculation
from edgespec.backends.gguf_header import header
from edgespec.backends.model_files import find_model
from edgespec.converters import convert, convert_head, exit_layer, mark_exit
from edgespec.engine import Text
from edgespec.library import size
from edgespec.models import head_files
from edgespec.models.model_source import local_draft
from edgespec.terminal import models as terminal

from . import checkpoints, eagle3_heads, heads

TEXT = [5 + 7 * n % 250 for n in range(20)]
WIDTH = 64


@dataclass(frozen=True)
class Files:
    """A model in both formats, and heads for it."""

    gguf: Path
    onnx: Path
    medusa: Path
    eagle3: Path
    borrowing: Path  # an EAGLE-3 head without embeddings of its own


def medusa(folder: Path, target: Path, width: int, tokens: int, output: Path) -> Path:
    draw, folder = np.random.default_rng(1), folder / f"medusa-{width}-{tokens}"
    folder.mkdir(exist_ok=True)
    checkpoints.write_safetensors(folder / "medusa_lm_head.safetensors", {
        "0.0.linear.weight": draw.standard_normal((width, width)).astype(np.float32),
        "0.0.linear.bias": np.zeros(width, np.float32),
        "0.1.weight": draw.standard_normal((tokens, width)).astype(np.float32),
    })  # fmt: skip
    list(convert_head(folder, target, output))
    return output


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    folder = tmp_path_factory.mktemp("head-files")
    source = checkpoints.llama(folder / "source", layers=4)
    (folder / "gguf").mkdir()
    list(convert(source, folder / "gguf" / "model.gguf", quantization="f16"))
    (folder / "onnx").mkdir()
    list(convert(source, folder / "onnx" / "model", fmt="onnx", quantization="fp32"))
    gguf = folder / "gguf" / "model.gguf"
    tokens = header(gguf).vocabulary.size
    config = eagle3_heads.config(hidden_size=WIDTH, eagle_aux_hidden_state_layer_ids=[1, 2, 3])
    made = eagle3_heads.tensors(config, {"hidden": WIDTH, "vocabulary": tokens})
    eagle3_heads.write(folder / "eagle3", config, made)
    list(convert_head(folder / "eagle3", source, folder / "eagle3.gguf", quantization="f16"))
    del made["embed_tokens.weight"]
    eagle3_heads.write(folder / "borrowing", config, made)
    list(convert_head(folder / "borrowing", gguf, folder / "borrowing.gguf", quantization="f16"))
    return Files(gguf, folder / "onnx" / "model", medusa(folder, gguf, WIDTH, tokens, folder / "medusa.onnx"),
                 folder / "eagle3.gguf", folder / "borrowing.gguf")  # fmt: skip


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))


def placed(files: Files, folder: Path) -> tuple[Path, Path]:
    """Copies of the models, each alone in a folder: a GGUF file, and the folder of an ONNX model."""
    (folder / "gguf").mkdir()
    (folder / "onnx").mkdir()
    shutil.copy(files.gguf, folder / "gguf" / "model.gguf")
    shutil.copytree(files.onnx, folder / "onnx" / "model")
    return folder / "gguf" / "model.gguf", folder / "onnx" / "model"


def test_heads_are_found_by_what_they_hold(files: Files, tmp_path: Path) -> None:
    gguf, graph = placed(files, tmp_path)
    assert local_draft(gguf) is None
    assert local_draft(graph) is None
    for head in (files.medusa, files.eagle3):
        for folder, target in (
            (gguf.parent, gguf),
            (graph, graph),
            (graph, graph / "model.onnx"),
            (graph.parent, graph),
        ):
            beside = folder / f"any-name{head.suffix}"
            shutil.copy(head, beside)
            assert local_draft(target) == beside
            beside.unlink()
    shutil.copy(files.borrowing, graph / "head.gguf")
    assert local_draft(graph) is None, "it borrows embeddings of GGUF files"
    shutil.copy(files.borrowing, gguf.parent / "head.gguf")
    assert local_draft(gguf) == gguf.parent / "head.gguf"
    shutil.copy(files.medusa, gguf.parent / "head.onnx")
    assert local_draft(gguf) == min(
        (gguf.parent / "head.gguf", gguf.parent / "head.onnx"), key=lambda path: path.stat().st_size
    )


def test_first_layers_that_draft_need_no_head(files: Files, tmp_path: Path) -> None:
    list(mark_exit(files.onnx, tmp_path / "marked", 2))
    shutil.copy(files.medusa, tmp_path / "marked" / "head.onnx")
    assert local_draft(tmp_path / "marked") is None


def test_heads_of_other_models_are_not(files: Files, tmp_path: Path) -> None:
    gguf, graph = placed(files, tmp_path)
    narrow = checkpoints.llama(tmp_path / "narrow", hidden=32)
    list(convert(narrow, tmp_path / "narrow.gguf", quantization="f16"))
    other = checkpoints.llama(tmp_path / "other", tokenizer="llama-3")
    list(convert(other, tmp_path / "other.gguf", quantization="f16"))
    for target, width in ((tmp_path / "narrow.gguf", 32), (tmp_path / "other.gguf", WIDTH)):
        strange = medusa(tmp_path, target, width, header(target).vocabulary.size, tmp_path / f"{target.stem}.onnx")
        for folder, model in ((gguf.parent, gguf), (graph, graph)):
            shutil.copy(strange, folder / "head.onnx")
            assert local_draft(model) is None, (strange, model)
    (graph / "head.onnx").write_bytes(files.medusa.read_bytes()[:-30])
    assert local_draft(graph) is None, "it is damaged"
    shutil.copy(heads.qwen35_apart(tmp_path)[1], graph / "mtp.gguf")
    assert local_draft(graph) is None


def test_a_model_of_an_older_edgespec_gives_no_states(files: Files, tmp_path: Path) -> None:
    _, graph = placed(files, tmp_path)
    for head in (files.medusa, files.eagle3):
        shutil.copy(head, graph / f"head{head.suffix}")
    assert local_draft(graph) is not None
    model = onnx.load_model(graph / "model.onnx", load_external_data=False)
    outputs = [each for each in model.graph.output if not each.name.startswith(("hidden.0", "output_norm"))]
    del model.graph.output[:]
    model.graph.output.extend(outputs)
    (graph / "model.onnx").write_bytes(model.SerializeToString())
    assert local_draft(graph) is None


def test_a_head_in_the_folder_is_no_second_model(files: Files, tmp_path: Path) -> None:
    _, graph = placed(files, tmp_path)
    shutil.copy(files.medusa, graph / "a.onnx")
    shutil.copy(files.eagle3, graph / "b.gguf")
    assert find_model(graph, "auto") == ("onnx", graph / "model.onnx")
    (tmp_path / "heads").mkdir()
    shutil.copy(files.eagle3, tmp_path / "heads")
    assert find_model(tmp_path / "heads", "auto")[1].name == "eagle3.gguf"


@pytest.mark.parametrize("name", ["medusa", "eagle3"])
@pytest.mark.parametrize("kind", ["gguf", "onnx"])
def test_what_was_found_drafts(name: str, kind: str, files: Files, tmp_path: Path) -> None:
    target = placed(files, tmp_path)[kind == "onnx"]
    head = files.medusa if name == "medusa" else files.eagle3
    shutil.copy(head, (target if target.is_dir() else target.parent) / f"head{head.suffix}")
    backend = "onnx" if kind == "onnx" else "llama"
    with edgespec.load(target, device=Device(context=128, threads=1, backend=backend)) as runtime:
        assert runtime.drafters == ("lookup", name)

        def answer(speculation: Speculation) -> list[int]:
            events = runtime.complete(TEXT, Sampling(temperature=0.8, seed=3), max_tokens=12, speculation=speculation)
            return [token for event in events if isinstance(event, Text) for token in event.tokens]

        assert answer(Speculation((name,), k=3)) == answer(Speculation((), k=0))
    if name == "medusa":
        with edgespec.load(target, "none", device=Device(context=128, threads=1, backend=backend)) as runtime:
            assert name not in runtime.drafters


# --- shown


def test_what_a_head_is(files: Files) -> None:
    said = list(terminal.shown(str(files.medusa), 0))
    assert said[0].startswith(f"head    {files.medusa}  ")
    tokens = header(files.gguf).vocabulary.size
    assert said[1].startswith(f"shape: medusa, 1 head, {tokens} tokens each, 0.0 M weights, int8")
    assert said[2].endswith(f"with states of {WIDTH} numbers and {tokens} tokens")
    assert said[3] == "head: it drafts for its target, with --draft (drafter medusa)"
    said = list(terminal.shown(str(files.eagle3), 0))
    assert said[1] == f"shape: eagle3, 1 layer, {WIDTH} wide, 200 rows in its output matrix"
    assert (
        said[2] == f"made for: rows of {WIDTH} numbers of the layers 1, 2, 3, and {tokens} tokens; embeddings: its own"
    )
    assert said[3].endswith("(drafter eagle3)")
    assert list(head_files.shape(files.borrowing))[1].endswith("its target's, so it drafts for GGUF targets only")


def test_a_pair_of_a_model_and_a_head(files: Files) -> None:
    for target in (files.gguf, files.onnx):
        for head, fits in ((files.medusa, True), (files.eagle3, True), (files.borrowing, target == files.gguf)):
            said = list(terminal.paired(str(target), str(head)))
            assert f"rows and vocabulary: those of {'this target' if fits else 'another model'}" in said


def test_what_an_exit_layer_is(files: Files, tmp_path: Path) -> None:
    list(exit_layer.split(files.gguf, tmp_path / "cut", 2))
    shared = (tmp_path / "cut" / "target-00002-of-00003.gguf").stat().st_size
    said = [line for line in terminal.shown(str(tmp_path / "cut"), 0) if line.startswith("exit: ")]
    once = f"with {shared / 1e3:.1f} kB of weights on the disk once for both"
    assert said == [f"exit: the draft is the target's layers 0-1, {once} (drafter exit)"]
    assert size(tmp_path / "cut") < files.gguf.stat().st_size + 2 * header(files.gguf).length + 4096, "links count once"
    list(exit_layer.keep(files.gguf, tmp_path / "kept.gguf", "0,3"))
    said = [line for line in terminal.shown(str(tmp_path / "kept.gguf"), 0) if line.startswith("exit: ")]
    assert said == ["exit: layers 0,3 of another model, for which it drafts (drafter exit)"]
