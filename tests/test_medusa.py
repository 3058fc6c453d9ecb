"""Medusa heads: converted beside a NumPy pass of the same weights, refused where they do not fit, and lossless."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from click.testing import CliRunner

import edgespec
from edgespec import Device, Interrupt, Sampling, Speculation
from edgespec.backends import StateHead, open_model, state_head_kind
from edgespec.cli import app
from edgespec.converters import convert, convert_head
from edgespec.converters.checkpoint import header
from edgespec.converters.stored_tensor import float32
from edgespec.engine import Finished, Text
from edgespec.errors import ConversionError, EdgespecError, ModelError, ModelFileError, OptionError

from . import checkpoints, heads, torch_files

Floats = npt.NDArray[np.float32]
Tensors = dict[str, Floats]
HIDDEN = 64
STEP = 17
PROMPT = [20, 20 + STEP, 20 + 2 * STEP, 20 + 3 * STEP]


def weights(seed: int, vocabulary: int, heads: int, layers: int = 1, hidden: int = HIDDEN) -> Tensors:
    """Random heads."""
    draw, made = np.random.default_rng(seed), dict[str, Floats]()
    for head in range(heads):
        for layer in range(layers):
            made[f"{head}.{layer}.linear.weight"] = (draw.standard_normal((hidden, hidden)) * 0.2).astype(np.float32)
            made[f"{head}.{layer}.linear.bias"] = (draw.standard_normal(hidden) * 0.2).astype(np.float32)
        made[f"{head}.{layers}.weight"] = (draw.standard_normal((vocabulary, hidden)) * 0.4).astype(np.float32)
    return made


def reference(made: Mapping[str, Floats], head: int, layers: int, state: Floats) -> npt.NDArray[np.float64]:
    """The logits of a head."""
    x = state.astype(np.float64)
    for layer in range(layers):
        y = made[f"{head}.{layer}.linear.weight"] @ x + made[f"{head}.{layer}.linear.bias"]
        x = x + y / (1 + np.exp(-y))
    return np.asarray(made[f"{head}.{layers}.weight"] @ x)


@dataclass(frozen=True)
class Chain:
    """A target whose next token depends on the last one only, in three forms, and heads that know it."""

    source: Path
    gguf: Path
    onnx: Path
    tokens: int
    knowing: Tensors


@pytest.fixture(scope="module")
def chain(tmp_path_factory: pytest.TempPathFactory) -> Chain:
    """Attention and MLP add nothing, so a state is the normed embedding of its token, and the heads' matrices are the
    target's with the rows moved."""
    folder = tmp_path_factory.mktemp("chain")
    source = checkpoints.llama(folder / "source", tied=False, layers=1)
    path = source / "model.safetensors"
    whole: Tensors = {name: np.concatenate([float32(block) for block in stored.blocks()]).reshape(stored.shape)
             for name, stored in header(path).items()}  # fmt: skip
    draw = np.random.default_rng(7)
    tokens = len(whole["lm_head.weight"])
    following = 3 + (np.arange(tokens) - 3 + STEP) % (tokens - 3)  # never a token that ends a text
    embedding = draw.standard_normal((tokens, HIDDEN)).astype(np.float32)
    whole["model.embed_tokens.weight"] = embedding
    whole["model.norm.weight"] = np.ones(HIDDEN, np.float32)
    for part in ("self_attn.o_proj", "mlp.down_proj"):
        whole[f"model.layers.0.{part}.weight"][:] = 0

    def matrix(steps: int) -> Floats:
        made: Floats = np.zeros((tokens, HIDDEN), np.float32)
        after: npt.NDArray[Any] = np.arange(tokens)
        for _ in range(steps):
            after = following[after]
        for token in range(tokens):
            made[after[token]] = 0.3 * embedding[token]
        return made

    whole["lm_head.weight"] = matrix(1)
    checkpoints.write_safetensors(path, whole)
    list(convert(source, folder / "chain.gguf", quantization="f16"))
    list(convert(source, folder / "onnx", fmt="onnx", quantization="fp32"))
    knowing: Tensors = {}
    for head in range(3):
        knowing[f"{head}.0.linear.weight"] = np.zeros((HIDDEN, HIDDEN), np.float32)
        knowing[f"{head}.0.linear.bias"] = np.zeros(HIDDEN, np.float32)
        knowing[f"{head}.1.weight"] = matrix(2 + head)
    return Chain(source, folder / "chain.gguf", folder / "onnx", tokens, knowing)


def written(folder: Path, made: Mapping[str, Any], name: str = "medusa_lm_head.safetensors") -> Path:
    folder.mkdir(exist_ok=True)
    if name.endswith(".safetensors"):
        checkpoints.write_safetensors(folder / name, made)
    else:
        (folder / name).write_bytes(torch_files.saved(made))
    return folder


def head_file(tmp_path: Path, chain: Chain, made: Mapping[str, Any], **options: Any) -> Path:
    output = tmp_path / "head.onnx"
    list(convert_head(written(tmp_path / "head", made), chain.gguf, output, **options))
    return output


def opened(path: Path) -> StateHead:
    head = open_model(path, Device(), Interrupt())
    assert isinstance(head, StateHead)
    return head


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


# --- drafting


def answer(runtime: edgespec.Runtime, sampling: Sampling, speculation: Speculation) -> tuple[list[int], Finished]:
    tokens: list[int] = []
    for event in runtime.complete(PROMPT, sampling, max_tokens=48, speculation=speculation):
        if isinstance(event, Text):
            tokens += event.tokens
        elif isinstance(event, Finished):
            finished = event
    return tokens, finished


@pytest.mark.parametrize("heads", ["random", "knowing"])
@pytest.mark.parametrize("engine", ["gguf", "onnx"])
def test_lossless(engine: str, heads: str, chain: Chain, tmp_path: Path) -> None:
    made = chain.knowing if heads == "knowing" else weights(3, chain.tokens, 3)
    path = head_file(tmp_path, chain, made)
    device = Device(context=256, threads=1)
    with edgespec.load(getattr(chain, engine), path, device=device) as runtime:
        assert runtime.step_prices["medusa"] > 0
        for sampling in (Sampling(), Sampling(temperature=0.8, seed=3), Sampling(temperature=0.8, top_k=5, seed=9)):
            plain, _ = answer(runtime, sampling, Speculation((), k=0))
            for k in (1, 3, 7, None):
                tokens, finished = answer(runtime, sampling, Speculation(("medusa",), k=k))
                assert tokens == plain
                if heads == "knowing" and k and not sampling.temperature:
                    assert finished.stats.accepted >= 0.9 * finished.stats.drafted > 0


@pytest.mark.parametrize("rule", ["rejection", "block"])
def test_other_rules(rule: str, chain: Chain, tmp_path: Path) -> None:
    path = head_file(tmp_path, chain, chain.knowing)
    with edgespec.load(chain.gguf, path, device=Device(context=256, threads=1)) as runtime:
        greedy, _ = answer(runtime, Sampling(), Speculation((), k=0))
        assert answer(runtime, Sampling(), Speculation(("medusa",), k=3, verifier=rule))[0] == greedy
        assert answer(runtime, Sampling(temperature=0.8, seed=1), Speculation(("medusa",), k=3, verifier=rule))[0]


def test_two_runtimes_and_prefixes(chain: Chain, tmp_path: Path) -> None:
    """Heads follow the session of their own runtime, also where a later prompt begins as an earlier one."""
    path = head_file(tmp_path, chain, chain.knowing)
    speculation = Speculation(("medusa",), k=3)
    with edgespec.load(chain.gguf, path, device=Device(context=256, threads=1), speculation=speculation) as first:
        with first.another() as second:
            for runtime in (first, second, first):
                assert (
                    answer(runtime, Sampling(), speculation)[0] == answer(runtime, Sampling(), Speculation((), k=0))[0]
                )
        _, finished = answer(first, Sampling(), speculation)
        assert finished.stats.accepted >= 0.9 * finished.stats.drafted > 0


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
