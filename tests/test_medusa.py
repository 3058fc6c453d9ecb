"""Medusa heads: converted beside a NumPy pass of the same weights, and refused where they do not fit."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import edgespec
from edgespec import Device, Speculation
from edgespec.backends import state_head_kind
from edgespec.cli import app
from edgespec.converters import convert, convert_head
from edgespec.errors import ConversionError, EdgespecError, ModelError, ModelFileError, OptionError

from . import checkpoints, heads, torch_files
from .medusa_heads import HIDDEN, Chain, chain_in, head_file, opened, reference, weights, written


@pytest.fixture(scope="module")
def chain(tmp_path_factory: pytest.TempPathFactory) -> Chain:
    return chain_in(tmp_path_factory.mktemp("chain"))


# --- conversion


@pytest.mark.parametrize("layers", [0, 1, 2])
@pytest.mark.parametrize("name", ["medusa_lm_head.safetensors", "medusa_lm_head.pt"])
def test_the_graph_computes_the_heads(layers: int, name: str, chain: Chain, tmp_path: Path) -> None:
    made = weights(3, chain.tokens, 3, layers)
    source = written(tmp_path / "head", made, name)
    # The published files name fewer heads than there are.
    (source / "config.json").write_text(json.dumps({"medusa_num_heads": 2, "medusa_num_layers": 1}))
    list(convert_head(source, chain.gguf, tmp_path / "head.onnx", quantization="fp32"))
    head = opened(tmp_path / "head.onnx")
    assert (head.heads, head.width) == (3, HIDDEN)
    state = np.random.default_rng(4).standard_normal(HIDDEN).astype(np.float32)
    tokens, logs = head.guesses(state)
    assert tokens.shape == logs.shape == (3, 8)
    for i in range(3):
        logits = reference(made, i, layers, state)
        wanted = logits - np.logaddexp.reduce(logits)
        assert np.abs(wanted[tokens[i]] - logs[i]).max() < 1e-3
        assert tokens[i].tolist() == np.argsort(-wanted)[:8].tolist()


@pytest.mark.parametrize("quantization", ["int8", "int4", "r8"])
def test_quantized_heads(quantization: str, chain: Chain, tmp_path: Path) -> None:
    head = opened(head_file(tmp_path, chain, chain.knowing, quantization=quantization))
    embedding = chain.knowing["0.1.weight"]
    for token in range(40, 60):
        tokens, _ = head.guesses(embedding[token] / np.linalg.norm(embedding[token]) * HIDDEN**0.5)
        assert tokens[0, 0] == token


def test_heads_of_whole_models(chain: Chain, tmp_path: Path) -> None:
    made = weights(3, chain.tokens, 2)
    other = {"model.norm.weight": np.ones(HIDDEN, np.float32)}
    source = written(tmp_path / "head", {**other, **{f"medusa_head.{name}": each for name, each in made.items()}},
                     "pytorch_model.bin")  # fmt: skip
    list(convert_head(source, chain.gguf, tmp_path / "head.onnx"))
    assert opened(tmp_path / "head.onnx").heads == 2


@pytest.mark.parametrize("target", ["gguf", "onnx", "source"])
def test_targets(target: str, chain: Chain, tmp_path: Path) -> None:
    source = written(tmp_path / "head", weights(3, chain.tokens, 1))
    list(convert_head(source, getattr(chain, target), tmp_path / "head.onnx"))
    assert state_head_kind(tmp_path / "head.onnx") == "medusa"
    with edgespec.load(chain.gguf, tmp_path / "head.onnx") as runtime:
        assert "medusa" in runtime.drafters


def test_fewer_tokens(chain: Chain, tmp_path: Path) -> None:
    made = weights(3, chain.tokens, 2)
    head = opened(head_file(tmp_path, chain, made, quantization="fp32", rows=100))
    state = np.random.default_rng(4).standard_normal(HIDDEN).astype(np.float32)
    tokens, _ = head.guesses(state)
    kept = reference(made, 0, 1, state)[:100]
    assert tokens.max() < 110
    assert len({*tokens[0].tolist()} & {*np.argsort(-kept)[:8].tolist()}) >= 6
    with pytest.raises(OptionError, match="cannot have 10 rows"):
        head_file(tmp_path, chain, made, rows=10, force=True)


def test_the_command(chain: Chain, tmp_path: Path) -> None:
    source, output = written(tmp_path / "head", chain.knowing), tmp_path / "head.onnx"
    made = CliRunner().invoke(app, ["convert", str(source), "--for", str(chain.gguf), "--out", str(output)])
    assert made.exit_code == 0, made.output
    asked = ["chat", str(chain.gguf), "--draft", str(output), "--drafter", "medusa", "-p", "x", "--max-tokens", "9"]
    said = CliRunner().invoke(app, [*asked, "--stats", "--temp", "0", "--ctx", "256", "--k", "2"])
    assert said.exit_code == 0, said.output
    assert "medusa" in said.output


def test_heads_with_tokens_of_their_own(chain: Chain, tmp_path: Path) -> None:
    ids = np.arange(5, chain.tokens, 3)
    whole = weights(3, chain.tokens, 2)
    made = {name: each[ids] if name.endswith(".1.weight") else each for name, each in whole.items()}
    listed = ("I64", ids.shape, ids.tobytes())
    head = opened(head_file(tmp_path, chain, {"d2t": listed, **made}, quantization="fp32"))
    state = np.random.default_rng(4).standard_normal(HIDDEN).astype(np.float32)
    tokens, _ = head.guesses(state)
    for i in range(2):
        assert tokens[i].tolist() == ids[np.argsort(-reference(made, i, 1, state))[:8]].tolist()
    for number, wrong in enumerate((ids[:-1], ids[::-1].copy(), ids - 6, ids.astype(np.float32))):
        source = written(tmp_path / f"wrong {number}", {"d2t": wrong, **made}, "medusa_lm_head.pt")
        with pytest.raises(ConversionError, match="d2t"):
            convert_head(source, chain.gguf, tmp_path / "wrong.onnx")
    beyond = {"d2t": np.append(ids[:-1], chain.tokens), **made}
    with pytest.raises(ConversionError, match="made for another model"):
        convert_head(written(tmp_path / "beyond", beyond, "medusa_lm_head.pt"), chain.gguf, tmp_path / "wrong.onnx")


# --- what is refused


VECTOR = np.zeros(HIDDEN, np.float32)
BAD: dict[str, tuple[dict[str, Any], str]] = {
    "a bias missing": ({"0.0.linear.bias": None}, "lacks the tensor 0.0.linear.bias"),
    "an output missing": ({"1.1.weight": None}, "lacks the tensor 1."),
    "a head missing": (
        {"0.0.linear.weight": None, "0.0.linear.bias": None, "0.1.weight": None},
        "lacks the tensor 0.0",
    ),
    "a tensor more": ({"1.2.linear.bias": VECTOR}, "no place for 1.2.linear.bias"),
    "a tensor of no head": ({"norm.weight": VECTOR}, "norm.weight is no tensor of a Medusa head"),
    "a bias of another width": ({"1.0.linear.bias": np.zeros(8, np.float32)}, r"1.0.linear.bias is \[8\]"),
    "whole numbers": ({"1.0.linear.bias": ("I64", (HIDDEN,), bytes(8 * HIDDEN))}, "I64; F32, F16 and BF16"),
    "not numbers": ({"1.0.linear.bias": np.full(HIDDEN, np.nan, np.float32)}, "not finite"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_heads(case: str, chain: Chain, tmp_path: Path) -> None:
    changes, words = BAD[case]
    made = {**weights(3, chain.tokens, 2), **changes}
    refused(tmp_path, chain, {name: each for name, each in made.items() if each is not None}, words)


def refused(tmp_path: Path, chain: Chain, made: Mapping[str, Any], words: str) -> None:
    source, output = written(tmp_path / "head", made), tmp_path / "out"
    output.mkdir()
    with pytest.raises(EdgespecError, match=words) as caught:
        list(convert_head(source, chain.gguf, output / "head.onnx"))
    assert "\n" not in str(caught.value)
    assert not list(output.iterdir())


def test_heads_for_another_model(chain: Chain, tmp_path: Path) -> None:
    refused(tmp_path, chain, weights(3, chain.tokens, 2, hidden=32), "states of 32 numbers, .* made for another model")


def test_a_head_is_no_target(chain: Chain, tmp_path: Path) -> None:
    source, (_, head) = written(tmp_path / "head", weights(3, chain.tokens, 1)), heads.qwen35_apart(tmp_path)
    with pytest.raises(ConversionError, match="not a model with a vocabulary"):
        convert_head(source, head, tmp_path / "head.onnx")


def test_heads_for_another_vocabulary(chain: Chain, tmp_path: Path) -> None:
    refused(tmp_path, chain, weights(3, chain.tokens + 2000, 1), "made for another model")


def test_hydra_is_refused_by_name(chain: Chain, tmp_path: Path) -> None:
    refused(tmp_path, chain, {"hydra_head.0.0.linear.weight": VECTOR}, "Hydra")


def test_a_hostile_head(chain: Chain, tmp_path: Path) -> None:
    place, source = tmp_path / "executed", tmp_path / "head"
    source.mkdir()
    call = b"cos\nsystem\n(" + torch_files.text(f"touch {place}") + b"tR"
    (source / "medusa_lm_head.pt").write_bytes(torch_files.archive(torch_files.dictionary({"x": call}), {}))
    with pytest.raises(ConversionError, match=r"os\.system.*nothing was executed"):
        convert_head(source, chain.gguf, tmp_path / "head.onnx")
    assert not place.exists()
    assert not (tmp_path / "head.onnx").exists()


def test_a_truncated_head(chain: Chain, tmp_path: Path) -> None:
    source = written(tmp_path / "head", weights(3, chain.tokens, 1), "medusa_lm_head.pt")
    path = source / "medusa_lm_head.pt"
    path.write_bytes(path.read_bytes()[:-1000])
    with pytest.raises(ConversionError, match="not a whole PyTorch file"):
        convert_head(source, chain.gguf, tmp_path / "head.onnx")


def test_loading_a_head_of_another_model(chain: Chain, tmp_path: Path) -> None:
    path = head_file(tmp_path, chain, weights(3, chain.tokens, 1))
    wider = checkpoints.llama(tmp_path / "wider", hidden=128, heads=4)
    list(convert(wider, tmp_path / "wider.gguf"))
    with pytest.raises(ModelError, match="have 64 numbers, and not 128"):
        edgespec.load(tmp_path / "wider.gguf", path)
    foreign = checkpoints.llama(tmp_path / "foreign", tokenizer="qwen2")
    list(convert(foreign, tmp_path / "foreign.gguf"))
    with pytest.raises(ModelError, match="whose vocabulary is not that of this model"):
        edgespec.load(tmp_path / "foreign.gguf", path)


def test_a_head_is_no_model(chain: Chain, tmp_path: Path) -> None:
    path = head_file(tmp_path, chain, weights(3, chain.tokens, 1))
    with pytest.raises(ModelFileError, match="without its model"):
        edgespec.load(path, "none")


def test_damaged_files(chain: Chain, tmp_path: Path) -> None:
    path = head_file(tmp_path, chain, weights(3, chain.tokens, 1))
    content = path.read_bytes()
    draw = np.random.default_rng(1)
    for _ in range(40):
        data = bytearray(content)
        for at in draw.integers(len(data) - 3000, len(data), 5):
            data[at] ^= int(draw.integers(1, 256))
        path.write_bytes(bytes(data) if draw.random() < 0.8 else content[: int(draw.integers(len(content)))])
        try:
            edgespec.load(chain.gguf, path, device=Device(context=256)).close()
        except EdgespecError as error:
            assert "\n" not in str(error)  # noqa: PT017 - any may be raised


def test_exact_and_heads_exclude_each_other(chain: Chain, tmp_path: Path) -> None:
    path = head_file(tmp_path, chain, weights(3, chain.tokens, 1))
    with pytest.raises(OptionError, match="exact is 8, but the drafter medusa"):
        edgespec.load(chain.gguf, path, device=Device(exact=8), speculation=Speculation(("medusa",)))
    with edgespec.load(chain.gguf, path, device=Device(exact=8)) as runtime:
        assert "medusa" not in runtime.drafters
