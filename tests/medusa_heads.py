"""Medusa heads for tests: random ones, and a target with heads that know it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from edgespec import Device, Interrupt
from edgespec.backends import StateHead, open_model
from edgespec.converters import convert, convert_head
from edgespec.converters.checkpoint import header
from edgespec.converters.stored_tensor import float32

from . import checkpoints, torch_files

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


def chain_in(folder: Path, layers: int = 1) -> Chain:
    """Attention and MLP add nothing, so a state is the normed embedding of its token, and the heads' matrices are the
    target's with the rows moved."""
    source = checkpoints.llama(folder / "source", tied=False, layers=layers)
    path = source / "model.safetensors"
    whole: Tensors = {name: np.concatenate([float32(block) for block in stored.blocks()]).reshape(stored.shape)
             for name, stored in header(path).items()}  # fmt: skip
    draw = np.random.default_rng(7)
    tokens = len(whole["lm_head.weight"])
    following = 3 + (np.arange(tokens) - 3 + STEP) % (tokens - 3)  # never a token that ends a text
    embedding = draw.standard_normal((tokens, HIDDEN)).astype(np.float32)
    whole["model.embed_tokens.weight"] = embedding
    whole["model.norm.weight"] = np.ones(HIDDEN, np.float32)
    for name, values in whole.items():
        if name.endswith(("self_attn.o_proj.weight", "mlp.down_proj.weight")):
            values[:] = 0

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


def doubting(chain: Chain) -> Tensors:
    """The heads that know the target, but for two of three states another token is the likeliest, and the right one
    second; or unlikely, for one of these two."""
    draw, made = np.random.default_rng(11), dict(chain.knowing)
    for head in range(3):
        right = made[f"{head}.1.weight"]
        changed = right.copy()
        for row in np.flatnonzero(np.abs(right).sum(1)):
            kind, other = draw.integers(3), int(draw.integers(3, chain.tokens))
            if kind and other != row:
                changed[other] += 1.2 * right[row]
                changed[row] -= (0.0, 0.0, 1.0)[kind] * right[row]
        made[f"{head}.1.weight"] = changed
    return made


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
