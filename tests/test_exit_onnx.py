"""First layers of an ONNX model as its draft: in parts it is the same model, and what it drafts changes nothing."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from click.testing import CliRunner

import edgespec
from edgespec import Device, Interrupt, Sampling, Speculation
from edgespec.backends import exit_layer
from edgespec.backends.onnx_file import read
from edgespec.backends.onnx_parts import split
from edgespec.backends.ort import OrtExitModel, open_model
from edgespec.backends.ort_exit import OrtExitHead, OrtExitSession
from edgespec.cli import app
from edgespec.converters import convert, mark_exit
from edgespec.engine import Text
from edgespec.errors import ClosedError, ConversionError, Interrupted, ModelFileError, OptionError
from edgespec.library import size
from edgespec.prices.engine_comparison import with_engine
from edgespec.terminal import models as terminal
from edgespec.types import Floats

from . import checkpoints, family_checkpoints, onnxfolders

TEXT = [5 + 7 * n % 250 for n in range(20)]
#: Families whose graphs differ at the borders or between them: plain, two norms, norms behind, LayerNorm, positions
#: that are learned, windows, experts.
FAMILIES = ("gemma3", "gemma2", "olmo2", "starcoder2", "gpt2", "phi3", "granite", "qwen3moe")


@pytest.fixture(scope="module")
def marked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of four layers, the first two of which draft."""
    folder = tmp_path_factory.mktemp("exit")
    source = checkpoints.llama(folder / "source", layers=4)
    list(convert(source, folder / "marked", fmt="onnx", quantization="fp32", exit_layer=2))
    return folder / "marked"


def parted(folder: Path, interrupt: Interrupt | None = None) -> OrtExitSession:
    model = open_model(folder / "model.onnx", Device(threads=1, head=True), interrupt or Interrupt())
    assert isinstance(model, OrtExitModel)
    return model.session(64)


def rows(folder: Path, text: Sequence[int] = TEXT) -> Floats:
    """The logits of the whole model."""
    with closing(onnxfolders.opened(folder)) as model, closing(model.session(64)) as session:
        return session.decode(text).copy()


def shorter(folder: Path, layers: int) -> Path:
    """The first layers as a model of their own: the checkpoint without the others."""
    source = checkpoints.llama(folder / "shorter", layers=4)
    config = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps({**config, "num_hidden_layers": layers}))
    from edgespec.converters.checkpoint import header  # noqa: PLC0415

    path = source / "model.safetensors"
    content = path.read_bytes()
    found = {
        name: (each.dtype, each.shape, content[each.offset : each.offset + each.nbytes])
        for name, each in header(path).items()
        if not any(f".layers.{layer}." in name for layer in range(layers, 4))
    }
    checkpoints.write_safetensors(path, found)
    list(convert(source, folder / "onnx", fmt="onnx", quantization="fp32"))
    return folder / "onnx"


# --- the parts are the model


@pytest.mark.parametrize("quantization", ["fp32", "int8", "int4", "r8"])
def test_in_parts_it_is_the_same_model(quantization: str, tmp_path: Path) -> None:
    source = checkpoints.llama(tmp_path / "source", layers=4)
    list(convert(source, tmp_path / "onnx", fmt="onnx", quantization=quantization, exit_layer=1))
    found = []
    for session in (onnxfolders.opened(tmp_path / "onnx").session(64), parted(tmp_path / "onnx")):
        session.prefill(TEXT[:7])
        found.append(np.concatenate([session.decode(TEXT[7:8]).copy(), session.decode(TEXT[8:]).copy()]))
    differences = np.abs(found[0] - found[1]).max(axis=1)
    assert differences.min() < 1e-3, "in passes of the same widths"
    # These round activations to 8 bits: where the last bit of a norm differs, one may be rounded to the next step.
    assert differences.max() < (1 if quantization in {"r8", "int4"} else 1e-3)
    assert found[0].std() > 5


@pytest.mark.parametrize("family", FAMILIES)
def test_every_kind_of_graph_can_be_cut(family: str, tmp_path: Path) -> None:
    family_checkpoints.make(tmp_path / "source", family)
    list(convert(tmp_path / "source", tmp_path / "onnx", fmt="onnx", quantization="fp32", exit_layer=1))
    session = parted(tmp_path / "onnx")
    assert np.abs(session.decode(TEXT) - rows(tmp_path / "onnx")).max() < 1e-3


def test_the_draft_is_the_first_layers(marked: Path, tmp_path: Path) -> None:
    expected = rows(shorter(tmp_path, 2))
    session = parted(marked)
    session.prefill(TEXT[:5])
    head = OrtExitHead(session)
    for n in range(5, 20):
        assert np.abs(head.logits(TEXT[5], TEXT[6 : n + 1]) - expected[n]).max() < 1e-3
    assert session.tokens == TEXT[:5], "drafts are no part of the text"
    assert np.abs(expected - rows(marked)).max() > 1, "the layers behind change something"


def test_after_drafts_that_are_rejected(marked: Path) -> None:
    """Drafts run ahead, the text goes on elsewhere, back and on: each row is what a fresh session gives."""
    draw, session = np.random.default_rng(5), parted(marked)
    text: list[int] = []
    for _ in range(40):
        last, wrong = int(draw.integers(3, 250)), [int(token) for token in draw.integers(3, 250, 4)]
        head = OrtExitHead(session)
        drafted = wrong[: draw.integers(0, 5)]
        if text:
            assert head.follows([*text, last])
            for n in range(len(drafted) + 1):
                row = head.logits(last, drafted[:n]).copy()
            assert np.abs(row - parted(marked).early([*text, last, *drafted])).max() < 1e-3
        accepted = drafted[: draw.integers(0, len(drafted) + 1)]
        verified = [last, *accepted, *(int(token) for token in draw.integers(3, 250, draw.integers(0, 3)))]
        found = session.decode(verified).copy()
        assert np.abs(found - rows(marked, [*text, *verified])[len(text) :]).max() < 1e-3
        text += verified
        kept = int(draw.integers(0, len(text) + 1)) if draw.random() < 0.3 or len(text) > 40 else len(text)
        session.rollback(kept)
        del text[kept:]
        assert list(session.tokens) == text


def test_what_was_drafted_is_not_computed_again(marked: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    session = parted(marked)
    session.prefill(TEXT[:4])
    head = OrtExitHead(session)
    for n in range(4):
        head.logits(TEXT[4], TEXT[5 : 5 + n])
    widths: list[int] = []
    front = session._passes._front
    run = front.run

    def counted(inputs: Any, *rest: Any) -> None:
        widths.append(inputs["input_ids"].shape[1])
        run(inputs, *rest)

    monkeypatch.setattr(front, "run", counted)
    session.decode(TEXT[4:9])
    assert widths == [1], "the last guess alone"
    session.rollback(6)
    session.decode([TEXT[6], 77])
    assert widths == [1, 1], "what follows the first token that differs"


def test_drafts_that_come_back_are_computed_again(marked: Path) -> None:
    session = parted(marked)
    session.prefill(TEXT[:4])
    for drafted in ([30, 31, 32], [40, 41, 42], [30, 31, 32]):
        assert np.abs(session.early(drafted) - parted(marked).early([*TEXT[:4], *drafted])).max() < 1e-3
    assert np.abs(session.decode([40, 41, 42]) - rows(marked, [*TEXT[:4], 40, 41, 42])[4:]).max() < 1e-3


def test_a_pass_that_ends_early_changes_nothing(marked: Path) -> None:
    interrupt = Interrupt()
    session = parted(marked, interrupt)
    session.prefill(TEXT[:6])
    expected = session.early(TEXT[6:9]).copy()
    interrupt.set()
    with pytest.raises(Interrupted):
        session.decode([9, 9])
    with pytest.raises(Interrupted):
        session.early([9, 9])
    interrupt.clear()
    assert list(session.tokens) == TEXT[:6]
    assert np.abs(session.early(TEXT[6:9]) - expected).max() < 1e-4
    assert np.abs(session.decode(TEXT[6:9]) - rows(marked, TEXT[:9])[6:]).max() < 1e-3
    session.close()
    with pytest.raises(ClosedError):
        session.early([3])


# --- drafting


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=0.8, seed=2)])
def test_it_drafts_as_exit(sampling: Sampling, marked: Path) -> None:
    with edgespec.load(marked, device=Device(context=128, threads=1)) as runtime:
        assert runtime.drafters == ("lookup", "exit")

        def answer(speculation: Speculation) -> tuple[list[int], int]:
            said = [event for event in runtime.complete(TEXT, sampling, max_tokens=24, speculation=speculation)
                    if isinstance(event, Text)]  # fmt: skip
            drafted = sum(len(event.round.draft) for event in said)
            return [token for event in said for token in event.tokens], drafted

        plain, _ = answer(Speculation((), k=0))
        for k in (1, 4, None):
            tokens, drafted = answer(Speculation(("exit",), k=k))
            assert tokens == plain
            assert drafted or k is None
        with runtime.another() as second:
            events = second.complete(TEXT, sampling, max_tokens=24, speculation=Speculation(("exit",), k=2))
            assert [token for event in events if isinstance(event, Text) for token in event.tokens] == plain


def test_without_the_drafter_it_is_loaded_as_any_other(marked: Path) -> None:
    for speculation, exact in ((Speculation(("lookup",)), 0), (None, 4)):
        device = Device(context=128, threads=1, backend="onnx", exact=exact)
        with edgespec.load(marked, device=device, speculation=speculation) as runtime:
            assert "exit" not in runtime.drafters
    with pytest.raises(OptionError, match="no drafter 'exit'"):
        edgespec.load(marked, device=Device(context=128, backend="openvino"), speculation=Speculation(("exit",)))


# --- conversion


def test_the_commands(marked: Path, tmp_path: Path) -> None:
    def run(*arguments: str | Path) -> object:
        done = CliRunner().invoke(app, list(map(str, arguments)))
        assert done.exit_code == 0, done.exception
        return done

    source = marked.parent / "source"
    run("convert", source, "--to", "onnx", "--quant", "int8", "--exit-layer", "3", "--out", tmp_path / "made")
    assert read(tmp_path / "made" / "model.onnx").exit_layer == exit_layer(tmp_path / "made") == 3
    run("convert", tmp_path / "made", "--exit-layer", "1", "--out", tmp_path / "again")
    assert exit_layer(tmp_path / "again") == 1
    assert exit_layer(tmp_path / "made") == 3
    both = [folder / "model.onnx.data" for folder in (tmp_path / "made", tmp_path / "again")]
    assert both[0].samefile(both[1]), "the weights are on the disk once"
    assert size(tmp_path) < 2 * size(tmp_path / "made")
    run("chat", tmp_path / "again", "--drafter", "exit", "-p", "x", "--max-tokens", "5", "--ctx", "128")
    said = list(terminal.shown(str(tmp_path / "again"), 0))
    assert "exit: its first 1 layers draft for it in ONNX Runtime, on the CPU (drafter exit)" in said


def test_refusals_are_one_line(marked: Path, tmp_path: Path) -> None:
    source = marked.parent / "source"
    hybrid = tmp_path / "hybrid"
    family_checkpoints.make(hybrid, "lfm2")
    list(convert(hybrid, tmp_path / "lfm2", fmt="onnx", quantization="fp32"))
    refused = [
        (OptionError, "the exit layer is 0; .* has 4 layers: give 1 to 3", source, 0),
        (OptionError, "the exit layer is 4", source, 4),
        (ConversionError, "have a state", hybrid, 1),
    ]
    for kind, words, checkpoint, layer in refused:
        with pytest.raises(kind, match=words) as caught:
            list(convert(checkpoint, tmp_path / "out", fmt="onnx", exit_layer=layer))
        assert "\n" not in str(caught.value)
    for kind, words, folder, layer in (
        (OptionError, "the exit layer is -1", marked, -1),
        (ConversionError, "have a state", tmp_path / "lfm2", 1),
        (ModelFileError, "holds no model.onnx", source, 1),
    ):
        with pytest.raises(kind, match=words):
            mark_exit(folder, tmp_path / "out", layer)
    with pytest.raises(ConversionError, match="exists"):
        mark_exit(marked, tmp_path / "lfm2", 1)
    steps = mark_exit(marked, tmp_path / "out", 1)
    next(iter(steps))
    steps.close()  # type: ignore[attr-defined]
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("layer", ["4", "0", "x", "-1", "9" * 30])
def test_metadata_that_contradict_the_graph(layer: str, marked: Path, tmp_path: Path) -> None:
    list(mark_exit(marked, tmp_path / "bad", 1))
    onnxfolders.rewritten(tmp_path / "bad", exit_layer=layer)
    onnxfolders.refused(tmp_path / "bad")


def test_norms_apart_keep_their_epsilon(tmp_path: Path) -> None:
    source = checkpoints.llama(tmp_path / "source", layers=2)
    config = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps({**config, "rms_norm_eps": 0.25}))
    list(convert(source, tmp_path / "onnx", fmt="onnx", quantization="fp32", exit_layer=1))
    assert np.abs(parted(tmp_path / "onnx").decode(TEXT) - rows(tmp_path / "onnx")).max() < 1e-3


def test_the_engine_is_the_one_that_drafts(marked: Path) -> None:
    chosen, choice = with_engine(marked, Device(head=True), Interrupt())
    assert (chosen.backend, choice) == ("onnx", None)
    kept, _ = with_engine(marked, Device(head=True, backend="openvino"), Interrupt())
    assert kept.backend == "openvino"


def test_graphs_that_cannot_be_cut(marked: Path) -> None:
    data = (marked / "model.onnx").read_bytes()
    model = onnx.load_model_from_string(data)
    for damage in ("logits", "hidden.1", "order"):
        changed = onnx.ModelProto()
        changed.CopyFrom(model)
        if damage == "order":  # the last layer reads the cache of the first
            for node in changed.graph.node:
                node.input[:] = [name.replace("past.3.", "past.0.") for name in node.input]
        else:
            for node in changed.graph.node:
                node.output[:] = ["x" if name == damage else name for name in node.output]
        with pytest.raises(ModelFileError, match="cannot be cut after layer 2") as caught:
            split(changed.SerializeToString(), 2, 4)
        assert "\n" not in str(caught.value)
    for damaged in (data[:2000], data.replace(b"past.3.key", b"past.\xff.key")):
        with pytest.raises(ModelFileError, match="cannot be cut"):
            split(damaged, 2, 4)
