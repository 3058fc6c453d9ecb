"""ONNX models: the files of a folder, whole, damaged and malicious."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import TensorProto, helper

from edgespec import Device, load, models
from edgespec.backends.onnx_file import read
from edgespec.errors import ModelFileError, OptionError

from .onnxfolders import Folders, refused, rewritten


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


def test_metadata_that_is_of_tomorrow_or_not_whole(copied: Path) -> None:
    rewritten(copied, format="3")
    refused(copied, "format '3'", "update")
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


def test_folders_with_models_of_both_engines(copied: Path, small_pair: dict[str, Path]) -> None:
    shutil.copy(small_pair["draft"], copied / "draft.gguf")
    refused(copied, "several models", "draft.gguf", "model.onnx", "--backend")
    for backend, name in (("llama", "llama"), ("onnx", "int4")):
        with load(copied, device=Device(threads=1, context=64, backend=backend)) as runtime:
            assert name in runtime.description.lower() or backend == "llama"
            assert ("int4" in runtime.description) == (backend == "onnx")


def test_a_backend_that_cannot_have_the_file(onnx_folders: Folders, small_pair: dict[str, Path]) -> None:
    for path, backend in ((onnx_folders("int4"), "llama"), (small_pair["draft"], "onnx")):
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
    assert models.with_draft(target) == (target, (draft,))
    assert models.with_draft(draft).draft is None
    named = draft.rename(tmp_path / "qwen-1.5b.draft")
    assert models.with_draft(target).draft == named


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
    refused(copied, "not a valid text")


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
        refused(copied, "not a valid tokenizer")
