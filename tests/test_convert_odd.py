"""Checkpoints whose files hold what no tool writes: one line of ConversionError, no warning before it, no waiting; and
what is converted, loads."""

from __future__ import annotations

import json
import math
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgespec import Device, Interrupt
from edgespec.backends import open_model
from edgespec.converters import convert
from edgespec.errors import ContextOverflow, ConversionError

from . import checkpoints, family_checkpoints

SMALL = Device(threads=1)


def converted(source: Path, output: Path, fmt: str, quantization: str = "") -> None:
    for _ in convert(source, output, fmt=fmt, quantization=quantization):
        pass


def refused(source: Path, *words: str, fmts: tuple[str, ...] = ("gguf", "onnx"), quantization: str = "") -> None:
    for fmt in fmts:
        output = source.parent / ("refused.gguf" if fmt == "gguf" else "refused")
        with pytest.raises(ConversionError) as caught:
            converted(source, output, fmt, quantization)
        message = str(caught.value)
        assert "\n" not in message
        assert all(word in message for word in words), message
        assert not output.exists()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkpoints.llama(tmp_path_factory.mktemp("odd") / "source", dtype="F32", generation={})


@pytest.fixture
def source(whole: Path, tmp_path: Path) -> Path:
    """A checkpoint to be damaged."""
    return Path(shutil.copytree(whole, tmp_path / "source"))


def changed(path: Path, **values: Any) -> None:
    known = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps({**known, **values}))


# --- files


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json"])
@pytest.mark.parametrize("kind", ["link", "folder", "pipe"])
def test_a_file_that_is_no_file(source: Path, name: str, kind: str) -> None:
    """A link to nothing was taken for no file, and the model was converted without its chat template."""
    path = source / name
    path.unlink()
    if kind == "link":
        path.symlink_to("nowhere")
    elif kind == "folder":
        path.mkdir()
    elif hasattr(os, "mkfifo"):
        os.mkfifo(path)
    else:
        pytest.skip("no pipes with names here")
    refused(source, name, {"link": "link to nothing", "pipe": "a pipe or a device", "folder": "directory"}[kind])


def test_line_ends_of_templates_are_those_of_text_files(source: Path, tmp_path: Path) -> None:
    (source / "chat_template.jinja").write_bytes(b"{# a #}\r\n{{ messages }}\r")
    converted(source, tmp_path / "out", "onnx")
    assert (tmp_path / "out" / "chat_template.jinja").read_bytes() == b"{# a #}\n{{ messages }}\n"


# --- tokens


@pytest.mark.parametrize(
    "added",
    [
        5,
        [5],
        [{}],
        [{"id": "1", "content": "a"}],
        [{"id": 1}],
        [{"id": 1, "content": 5}],
        [{"id": True, "content": "a"}],
    ],
)
def test_added_tokens_that_are_no_objects(source: Path, added: Any) -> None:
    changed(source / "tokenizer.json", added_tokens=added)
    refused(source, "tokenizer.json")


@pytest.mark.parametrize(
    "decoder",
    [
        {"0": 5},
        {"x": {"content": "a"}},
        {"9" * 5000: {"content": "a"}},
        {"0": {}},
        {"0": {"content": []}},
        {"0": {"content": "\ud800"}},
    ],
)
def test_an_added_tokens_decoder_of_no_tokens(tmp_path: Path, decoder: dict[str, Any]) -> None:
    """It counts where there is no tokenizer.json."""
    source = checkpoints.llama(tmp_path / "source", tokenizer="spm-model")
    changed(source / "tokenizer_config.json", added_tokens_decoder=decoder)
    refused(source, "tokenizer_config.json has an added token")


@pytest.mark.parametrize("listed", [{"a": []}, {"a": {}}, {"\ud800": 3}, {"a": "3"}])
def test_added_tokens_that_are_no_numbers(tmp_path: Path, listed: dict[str, Any]) -> None:
    source = checkpoints.llama(tmp_path / "source", tokenizer="spm-model")
    changed(source / "added_tokens.json", **listed)
    refused(source, "added_tokens.json has an added token")


@pytest.mark.parametrize("settings", [{"eos_token": "\ud800"}, {"bos_token": {"content": "a\udfff"}}])
def test_special_tokens_that_are_no_text(source: Path, settings: dict[str, Any]) -> None:
    changed(source / "tokenizer_config.json", **settings)
    refused(source, "is not text")


@pytest.mark.parametrize("template", ["\ud800", [{"name": "default", "template": "a\udc00"}]])
def test_templates_that_are_no_text(source: Path, template: Any) -> None:
    changed(source / "tokenizer_config.json", chat_template=template)
    refused(source, "is not text")


def test_half_a_character_elsewhere_travels(source: Path, tmp_path: Path) -> None:
    changed(source / "tokenizer_config.json", note="\ud800")
    converted(source, tmp_path / "out", "onnx")
    assert json.loads((tmp_path / "out" / "tokenizer_config.json").read_text())["note"] == "\ud800"


# --- configurations


@pytest.mark.parametrize(
    ("kind", "config", "words"),
    [
        ("qwen2", {"head_dim": 32}, "llama.cpp does not run a model of these shapes"),
        ("qwen2", {"num_attention_heads": 6}, "llama.cpp does not run a model of these shapes"),
        ("qwen2", {"head_dim": 12}, "llama.cpp does not run a model of these shapes"),
        ("mixtral", {"moe_intermediate_size": 16}, "llama.cpp does not run a model of these shapes"),
        ("phi4-mini", {"original_max_position_embeddings": 1 << 63}, "original_max_position_embeddings"),
        ("phi4-mini", {"original_max_position_embeddings": 1}, "a context of 1 tokens"),
        ("llama", {"max_position_embeddings": 2}, "a context of 2 tokens"),
        ("llama", {"sliding_window": 1}, "sliding_window is 1"),
        ("llama", {"rms_norm_eps": 1e-50}, "rms_norm_eps"),
        ("granite", {"logits_scaling": 1e-50}, "logits_scaling"),
    ],
)
def test_what_chat_would_refuse_is_not_converted(tmp_path: Path, kind: str, config: dict[str, Any], words: str) -> None:
    refused(family_checkpoints.make(tmp_path / "source", kind, **config), words, fmts=("gguf",))


@pytest.mark.parametrize(
    ("kind", "config"),
    [
        ("qwen2", {"head_dim": 32}),
        ("llama", {"max_position_embeddings": 8}),
        ("llama", {"num_attention_heads": 1, "num_key_value_heads": 1}),
        ("llama", {"num_hidden_layers": 1, "intermediate_size": 1}),
        ("gemma3", {"sliding_window": 1}),
        ("phi4-mini", {"partial_rotary_factor": 1.0, "rope_scaling": None}),
    ],
)
@pytest.mark.parametrize("fmt", ["gguf", "onnx"])
def test_what_is_converted_loads(tmp_path: Path, kind: str, config: dict[str, Any], fmt: str) -> None:
    source = family_checkpoints.make(tmp_path / "source", kind, **config)
    output = tmp_path / ("out.gguf" if fmt == "gguf" else "out")
    try:
        converted(source, output, fmt)
    except ConversionError:
        assert (kind, fmt) == ("qwen2", "gguf")
        return
    model = open_model(output, SMALL, Interrupt())
    session = model.session(64)
    assert session.decode([1, 2, 3]).shape[0] == 3
    session.close()
    model.close()


@pytest.mark.parametrize("quantization", ["fp16", "int4-fp16"])
def test_multipliers_that_half_precision_cannot_hold(tmp_path: Path, quantization: str) -> None:
    source = family_checkpoints.make(tmp_path / "source", "granite", embedding_multiplier=1e6)
    refused(source, "too large for this quantization", fmts=("onnx",), quantization=quantization)
    source = family_checkpoints.make(tmp_path / "other", "phi4-mini")
    config = json.loads((source / "config.json").read_text())
    changed(source / "config.json", rope_scaling={**config["rope_scaling"], "attention_factor": 1e6})
    refused(source, "too large for this quantization", fmts=("onnx",), quantization=quantization)


# --- numbers


@pytest.mark.parametrize(
    "bits",
    [b"\x01\x00\x80\x7f", b"\x00\x00\x80\x7f", b"\x00\x00\xc0\xff", np.random.default_rng(0).bytes(1 << 16)],
    ids=["signalling", "infinite", "quiet", "random"],
)
@pytest.mark.parametrize(
    ("fmt", "quantization"),
    [*(("onnx", name) for name in ("int8", "int4", "fp16", "r8", "fp32")), ("gguf", "q8_0"), ("gguf", "q4_k_m")],
)
def test_numbers_that_are_not_finite(source: Path, bits: bytes, fmt: str, quantization: str) -> None:
    """Without a warning of NumPy's before the error: it is an error here."""
    fill(source / "model.safetensors", bits)
    refused(source, "not finite", fmts=(fmt,), quantization=quantization)


@pytest.mark.parametrize("quantization", ["q8_0", "q4_k_m", "q4_0"])
def test_numbers_without_a_scale(source: Path, quantization: str, capfd: pytest.CaptureFixture[str]) -> None:
    """ggml itself complains of them on standard error."""
    fill(source / "model.safetensors", np.float32(1e38).tobytes())
    refused(source, "too large for this quantization", fmts=("gguf",), quantization=quantization)
    assert not capfd.readouterr().err


def fill(path: Path, bits: bytes) -> None:
    data = path.read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    path.write_bytes((data[:start] + bits * math.ceil((len(data) - start) / len(bits)))[: len(data)])


@pytest.mark.parametrize("exact", [0, 4])
def test_a_text_ends_where_learned_positions_do(tmp_path: Path, exact: int) -> None:
    """Behind them ggml ended the process."""
    source = family_checkpoints.make(tmp_path / "source", "gpt2", n_positions=16)
    converted(source, tmp_path / "out.gguf", "gguf")
    model = open_model(tmp_path / "out.gguf", Device(threads=1, exact=exact), Interrupt())
    session = model.session(64)
    assert session.context == 16 - max(0, exact - 1)
    for token in range(session.context):
        session.decode([token])
    with pytest.raises(ContextOverflow):
        session.decode([1])
    session.close()
    model.close()
