"""OpenVINO IR models as optimum-intel exports them: what they compute, how they are found, and what is refused."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgespec import Device, Finished, Interrupt, Runtime, Sampling, Speculation, Text, load
from edgespec.backends import engines, open_model, openvino_ir, openvino_ir_file
from edgespec.backends.openvino import OpenvinoModel
from edgespec.backends.openvino_package import bindings
from edgespec.errors import HubError, ModelFileError, OptionError
from edgespec.library.converting import converted
from edgespec.models import fit, model_source
from edgespec.models.hub import Hub
from edgespec.models.listing import file_named, gguf
from edgespec.models.memory import MachineMemory
from edgespec.models.model_summary import of_path
from edgespec.models.sizes import size_of, sizes
from edgespec.storage import pair_file
from edgespec.testing import check_model

from . import checkpoints, irfolders
from .commandline import last_error, run
from .hubserver import serving
from .onnxfolders import Folders
from .reference import Reference
from .test_llama_exact import plainly, speculatively

PROMPT = [5, 300, 41, *range(100, 120)]
XML, BIN = "openvino_model.xml", "openvino_model.bin"


def opened(folder: Path, **options: Any) -> OpenvinoModel:
    model = open_model(folder, Device(**{"threads": 1, **options}), Interrupt())
    assert isinstance(model, OpenvinoModel)
    return model


@pytest.fixture(scope="module")
def written(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Path]:
    """The folder of the checkpoint as an IR model, by the size of its groups."""
    folder = tmp_path_factory.mktemp("ir")

    def write(groups: int) -> Path:
        name = folder / f"groups{groups}"
        return name if name.exists() else irfolders.write(checkpoint, name, groups=groups)

    return write


@pytest.fixture(scope="module")
def model(written: Callable[[int], Path]) -> Iterator[OpenvinoModel]:
    found = opened(written(0))
    yield found
    found.close()


@pytest.fixture
def copied(written: Callable[[int], Path], tmp_path: Path) -> Path:
    """A folder to be damaged."""
    return Path(shutil.copytree(written(0), tmp_path / "copied"))


def refused(folder: Path, words: str) -> None:
    """Opening is an error on one line that says `words` and a way out."""
    with pytest.raises(ModelFileError) as caught:
        opened(folder)
    message = str(caught.value)
    assert words in message
    assert str(folder) in message
    assert "\n" not in message
    assert 30 < len(message) < 700


# --- what it computes


@pytest.mark.parametrize(("groups", "most"), [(0, 0.01), (32, 0.1)])
def test_logits(groups: int, most: float, written: Callable[[int], Path], checkpoint: Path) -> None:
    model, expected = opened(written(groups)), Reference(checkpoint).logits(PROMPT)
    session = model.session(64)
    for start in (0, 7, 22):
        session.rollback(start)
        found = session.decode(PROMPT[start:])
        assert np.linalg.norm(found - expected[start:]) < most * np.linalg.norm(expected[start:]), start
    session.rollback(0)
    session.prefill(PROMPT[:-1])
    np.testing.assert_allclose(session.decode(PROMPT[-1:])[0], found[-1], atol=0.5)
    session.close()
    model.close()


def test_it_keeps_the_laws(model: OpenvinoModel) -> None:
    """Rollback, trees, prefill in chunks, and what `edgespec.testing` asks of every engine."""
    session = model.session(64)
    assert session.can_tree
    session.close()
    check_model(model, 0.2)


def test_a_tree_is_its_branches(model: OpenvinoModel) -> None:
    tree, alone = model.session(64), model.session(64)
    for session in (tree, alone):
        session.prefill(PROMPT)
    rows = tree.decode([7, 8, 9, 10], [-1, -1, 0, 0]).copy()
    for node, path in enumerate(([7], [8], [7, 9], [7, 10])):
        assert np.abs(rows[node] - alone.decode(path)[-1]).max() < 1e-2, path
        alone.rollback(len(PROMPT))
    tree.close()
    alone.close()


class Attention:
    """An attention node with constants for its window and its slopes."""

    def __init__(self, window: int, slopes: int) -> None:
        constant = bindings().opset13.constant
        self._inputs = {10: constant(np.int32(window)), 11: constant(np.zeros(slopes, np.float32))}

    def input_value(self, place: int) -> Any:
        return self._inputs[place].output(0)


def test_attention_that_counts_rows_is_seen() -> None:
    for window, slopes, counts in ((0, 0, False), (8, 0, True), (0, 4, True)):
        assert openvino_ir._counts_rows(Attention(window, slopes)) is counts


def test_without_trees_where_attention_counts_rows(
    written: Callable[[int], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(openvino_ir, "_counts_rows", lambda _attention: True)
    found = opened(written(0))
    session = found.session(64)
    assert (session.can_tree, session.leaves) == (False, 0)
    session.close()
    found.close()


@pytest.mark.parametrize("length", [1, 30])
def test_speculation_changes_no_bit(length: int, written: Callable[[int], Path]) -> None:
    exact = opened(written(32), exact=2)
    session = exact.session(256)
    prompt = [5 + i * 31 % 900 for i in range(length)]
    plain = plainly(session, prompt, 40)
    found = speculatively(session, prompt, plain.tokens, 0)
    assert found.tokens == plain.tokens
    np.testing.assert_array_equal(found.rows, plain.rows)
    session.close()
    exact.close()


def test_what_is_known_of_it(written: Callable[[int], Path], model: OpenvinoModel) -> None:
    grouped = opened(written(32))
    assert grouped.description == "groups32 (0.4M, int8-b32)"
    assert model.description == "groups0 (0.4M, fp32)"
    assert grouped.trained_context == 2048
    assert grouped.weights != model.weights
    assert grouped.vocabulary.template == checkpoints.CHATML
    pair = [each.session(64) for each in (grouped, model)]
    assert pair[0].identity != pair[1].identity
    for session in pair:
        session.close()
    grouped.close()


def test_hidden_states_are_refused(model: OpenvinoModel) -> None:
    with pytest.raises(OptionError, match=r"returns no hidden states; convert the checkpoint with `edgespec convert"):
        model.session(64, hidden=(0,))


@pytest.fixture(params=["ir", "onnx"])
def pair(request: pytest.FixtureRequest, written: Callable[[int], Path], onnx_folders: Folders) -> Iterator[Runtime]:
    """An IR model as the target, with a draft of the same checkpoint."""
    draft = {"ir": written(32), "onnx": onnx_folders("fp32")}[request.param]
    with load(written(0), draft, device=Device(context=256, threads=1)) as runtime:
        yield runtime


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=0.9, seed=3)])
def test_pairs_say_what_the_target_says(pair: Runtime, sampling: Sampling) -> None:
    def said(speculation: Speculation) -> tuple[list[int], Finished]:
        tokens: list[int] = []
        for event in pair.complete(list(range(300, 330)), sampling, max_tokens=40, speculation=speculation):
            tokens += event.tokens if isinstance(event, Text) else ()
        assert isinstance(event, Finished)
        return tokens, event

    plain, _ = said(Speculation(k=0))
    tokens, finished = said(Speculation(k=4, drafters=("model",)))
    assert tokens == plain
    assert finished.stats.acceptance_rate > 0.3


# --- how it is found


def test_the_file_of_a_folder(written: Callable[[int], Path], tmp_path: Path) -> None:
    """openvino_tokenizer.xml lies beside it."""
    assert engines(written(0)) == ("openvino",)
    assert engines(written(0) / XML) == ("openvino",)
    (tmp_path / "openvino_tokenizer.xml").write_text("<net/>", encoding="utf-8")
    with pytest.raises(ModelFileError, match="is not a model file that edgespec opens"):
        engines(tmp_path)
    with pytest.raises(ModelFileError, match="for the backend openvino, not for llama"):
        opened(written(0), backend="llama")


def test_sizes_and_drafts(written: Callable[[int], Path], tmp_path: Path) -> None:
    folder = written(0)
    found = sizes(folder)
    assert found == sizes(folder / XML)
    assert found.weights == (folder / BIN).stat().st_size
    assert found.cache == 2 * 2 * 2 * 2 * 16, "keys and values of 2 layers with 2 heads of 16 numbers in float16"
    assert found.trained == 2048
    assert size_of(folder / XML) == found.weights + (folder / XML).stat().st_size
    assert fit.choose(found, None, MachineMemory(1 << 33, ()), fit.Requested()).context == 2048
    summary = of_path(folder)
    assert summary.tokens is not None
    assert summary.template == checkpoints.CHATML
    target = Path(shutil.copytree(folder, tmp_path / "some"))
    draft = Path(shutil.copytree(folder, tmp_path / "some.draft"))
    assert pair_file.beside(target) == draft
    assert model_source.local_draft(target) is None, "more than a tenth"
    (target / "other").write_bytes(bytes(10 * size_of(draft)))
    assert model_source.local_draft(target) == draft
    (target / "model.safetensors").write_bytes(b"")
    assert converted(target, _no_job()) == target


def _no_job() -> Any:
    """A job that is never asked."""
    return None


def test_models_show(written: Callable[[int], Path]) -> None:
    done = run("models", "show", str(written(0)))
    assert done.returncode == 0, done.stderr
    assert "memory: weights" in done.stdout
    assert "vocabulary: the same" in run("models", "pair", str(written(0)), str(written(32))).stdout


def test_a_repository_of_the_hub(written: Callable[[int], Path], tmp_path: Path) -> None:
    """Its files come with the graph first; the weights come last, so that a model with them is whole."""
    files = {path.name: path.read_bytes() for path in written(0).iterdir()}
    repos = {"org/some-ov": files | {"training.bin": b"x"}, "org/bare-ov": {XML: b"<net/>", BIN: b""}}
    with serving(repos) as stand_in:
        hub = Hub(stand_in.endpoint, tmp_path / "hub")
        pulled = hub.pull("org/some-ov", gguf())
        names = [path.name for path in pulled.paths]
        assert names == [XML, "config.json", "tokenizer.json", "tokenizer_config.json", BIN]
        assert hub.find("org/some-ov", gguf()) == pulled
        assert hub.find("org/some-ov", file_named(XML)) == pulled
        model = opened(pulled.paths[0])
        assert model.description == "some-ov (0.4M, fp32)"
        model.close()
        with pytest.raises(HubError, match=r"org/bare-ov has an OpenVINO model without config.json"):
            hub.pull("org/bare-ov", gguf())
        with pytest.raises(HubError, match=r"has no GGUF file of q4_0"):
            hub.pull("org/some-ov", gguf("q4_0"))
        pulled.paths[-1].unlink()
        assert hub.find("org/some-ov", gguf()) is None


# --- what is refused


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        (BIN, None, "cannot be read"),
        (BIN, b"", "0 bytes and not"),
        (BIN, b"short", "5 bytes and not"),
        (XML, b"no graph", "is not an OpenVINO IR model, or it is truncated"),
        (XML, b"", "is not an OpenVINO IR model, or it is truncated"),
        (XML, b"<html></html>", "its root is 'html' and not net"),
        (XML, b"<net></net>", "is no decoder of text"),
        (XML, b'<net><layer type="Const"><data offset="-1" size="2" shape="" /></layer></net>', "is no whole number"),
        (XML, b'<net><layer type="Const" /></net>', "a constant has no shape"),
        (XML, b'<net><layer type="Const"><data offset="0" size="2" /></layer></net>', "a constant has no shape"),
        ("tokenizer.json", None, "has no tokenizer.json"),
        ("config.json", None, "is missing, or not a JSON object"),
        ("config.json", b"[]", "is missing, or not a JSON object"),
        ("config.json", b"{", "cannot be read"),
        ("config.json", b"{}", "gives no number of positions"),
        ("config.json", b'{"max_position_embeddings": true}', "gives no number of positions"),
        ("config.json", b'{"max_position_embeddings": 1e99}', "gives no number of positions"),
        ("config.json", b'{"max_position_embeddings": 99999999999}', "gives no number of positions"),
    ],
)
def test_a_file_that_is_not_right(copied: Path, name: str, content: bytes | None, words: str) -> None:
    if content is None:
        (copied / name).unlink()
    else:
        (copied / name).write_bytes(content)
    refused(copied, words)


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9, 0.999])
def test_a_graph_that_is_truncated(copied: Path, share: float) -> None:
    graph = (copied / XML).read_bytes()
    (copied / XML).write_bytes(graph[: int(share * len(graph))])
    refused(copied, "is not an OpenVINO IR model, or it is truncated")


def test_a_graph_that_openvino_cannot_read(copied: Path) -> None:
    graph = (copied / XML).read_text("utf-8")
    (copied / XML).write_text(graph.replace('type="ReduceMean"', 'type="Unknown"', 1), encoding="utf-8")
    refused(copied, f"OpenVINO cannot read {copied / XML} (")
    with pytest.raises(ModelFileError, match=r"\(Opset opset1 doesn't contain the operation with type: Unknown\)"):
        opened(copied)


@pytest.mark.parametrize("kind", ["ReadValue", "Assign"])
@pytest.mark.parametrize("data", ["<data />", ""])
def test_a_state_without_a_name(kind: str, data: str, copied: Path) -> None:
    """OpenVINO's reader ends the process."""
    graph = (copied / XML).read_text("utf-8")
    spoilt = re.sub(rf'(type="{kind}"[^>]*>\s*)<data [^>]*/>', rf"\g<1>{data}", graph, count=1)
    assert spoilt != graph
    (copied / XML).write_text(spoilt, encoding="utf-8")
    refused(copied, "a state has no variable_id")


def test_other_graphs(checkpoint: Path, tmp_path: Path) -> None:
    irfolders.write(checkpoint, tmp_path / "stateless", state=False)
    refused(tmp_path / "stateless", "keeps no keys and values")
    irfolders.write(checkpoint, tmp_path / "recurrent", recurrent=True)
    refused(tmp_path / "recurrent", "other states than keys and values")


@pytest.mark.parametrize(
    ("found", "other", "words"),
    [
        ('names="input_ids"', 'names="inputs_embeds"', "is no decoder of text: it has the inputs 'inputs_embeds'"),
        ('names="attention_mask"', 'names="encoder_hidden_states"', "has the input 'encoder_hidden_states'"),
        ('names="beam_idx"', 'names="past_key_values.0.key"', "takes its keys and values as inputs"),
        ('names="logits"', 'names="scores"', "none of its outputs is called logits"),
    ],
)
def test_inputs_of_other_models(copied: Path, found: str, other: str, words: str) -> None:
    graph = (copied / XML).read_text("utf-8")
    assert found in graph
    (copied / XML).write_text(graph.replace(found, other), encoding="utf-8")
    refused(copied, words)


@pytest.mark.parametrize(
    ("changes", "window"),
    [
        ({"sliding_window": 100}, 100),
        ({"sliding_window": None}, 0),
        ({"sliding_window": 5000}, 0),
        ({"sliding_window": 100, "use_sliding_window": False}, 0),
        ({"sliding_window": 100, "layer_types": ["full_attention"] * 2}, 0),
        ({"attention_chunk_size": 64, "layer_types": ["chunked_attention", "full_attention"]}, 64),
    ],
)
def test_a_window_that_the_graph_does_not_have(copied: Path, changes: dict[str, Any], window: int) -> None:
    """OpenVINO takes masks that it does not know for causal ones."""
    config = json.loads((copied / "config.json").read_text("utf-8"))
    (copied / "config.json").write_text(json.dumps(config | changes), encoding="utf-8")
    assert openvino_ir_file.read(copied / XML).window == window
    if window:
        refused(copied, f"a window of {window} tokens, which OpenVINO did not find")
    else:
        opened(copied).close()


def test_a_chat_with_a_folder_that_is_not_whole(copied: Path) -> None:
    (copied / BIN).write_bytes(b"short")
    done = run("chat", str(copied), "--draft", "none", "-p", "x", "--max-tokens", "2")
    assert done.returncode == 1
    assert "5 bytes and not" in last_error(done)


# --- a real one


def test_a_model_of_optimum_intel() -> None:
    """EDGESPEC_OPENVINO_MODEL is a folder that `optimum-cli export openvino` wrote."""
    if not (folder := os.environ.get("EDGESPEC_OPENVINO_MODEL")):
        pytest.skip("EDGESPEC_OPENVINO_MODEL names no folder of optimum-intel")
    model = opened(Path(folder))
    check_model(model, 0.2)
    model.close()
