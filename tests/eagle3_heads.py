"""EAGLE-3 heads for tests: random ones and one that knows its target, as checkpoints, and their passes in NumPy."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from . import checkpoints

Floats = npt.NDArray[np.float32]
Json = dict[str, Any]
RING = range(100, 124)
_MARGIN = 5.0  # logits of the right token beyond the others


def tensors(config: Json, target: Mapping[str, int], seed: int = 0) -> dict[str, npt.NDArray[Any]]:
    """Random tensors of a head by the names of SafeAILab, for a target of a `hidden` width and a `vocabulary`."""
    draw = np.random.default_rng(seed)
    hidden, heads, ffn, rows = (
        config[key] for key in ("hidden_size", "num_attention_heads", "intermediate_size", "draft_vocab_size")
    )
    head_dim = config.get("head_dim", hidden // heads)
    wide, kv = heads * head_dim, config["num_key_value_heads"] * head_dim

    def matrix(n: int, columns: int, gain: float = 1.0) -> Floats:
        return (draw.standard_normal((n, columns)) * gain / columns**0.5).astype(np.float32)

    def norm(n: int) -> Floats:
        return (1 + 0.1 * draw.standard_normal(n)).astype(np.float32)

    found: dict[str, npt.NDArray[Any]] = {
        "embed_tokens.weight": matrix(target["vocabulary"], hidden, hidden**0.5),
        "fc.weight": matrix(hidden, 3 * target["hidden"]),
        "midlayer.self_attn.q_proj.weight": matrix(wide, 2 * hidden),
        "midlayer.self_attn.k_proj.weight": matrix(kv, 2 * hidden),
        "midlayer.self_attn.v_proj.weight": matrix(kv, 2 * hidden),
        "midlayer.self_attn.o_proj.weight": matrix(hidden, wide),
        "midlayer.mlp.gate_proj.weight": matrix(ffn, hidden, 2),
        "midlayer.mlp.up_proj.weight": matrix(ffn, hidden, 2),
        "midlayer.mlp.down_proj.weight": matrix(hidden, ffn, 2),
        "midlayer.input_layernorm.weight": norm(hidden),
        "midlayer.hidden_norm.weight": norm(hidden),
        "midlayer.post_attention_layernorm.weight": norm(hidden),
        "norm.weight": norm(hidden),
        "lm_head.weight": matrix(rows, hidden, 3),
    }
    if config.get("norm_before_fc"):
        found["input_norm.weight"] = norm(3 * target["hidden"])
    tokens = np.sort(draw.choice(target["vocabulary"], rows, replace=False)).astype(np.int64)
    if rows < target["vocabulary"]:
        found["d2t"] = tokens - np.arange(rows)
        found["t2d"] = np.isin(np.arange(target["vocabulary"]), tokens)
    return found


def config(**changed: Any) -> Json:
    """The config.json of a small head."""
    found: Json = {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "num_hidden_layers": 1,
        "rms_norm_eps": 1e-5,
        "draft_vocab_size": 200,
        "max_position_embeddings": 2048,
        "eagle_aux_hidden_state_layer_ids": [1, 2, 3],
    }
    found |= changed
    return {key: value for key, value in found.items() if value != "absent"}


def write(folder: Path, config: Json, tensors: Mapping[str, npt.NDArray[Any]]) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    checkpoints.write_safetensors(folder / "model.safetensors", tensors)
    return folder


def speculators(config: Json, found: Mapping[str, npt.NDArray[Any]]) -> tuple[Json, dict[str, npt.NDArray[Any]]]:
    """The same head as vLLM's speculators write it."""
    own = ("draft_vocab_size", "norm_before_residual", "eagle_aux_hidden_state_layer_ids", "target_hidden_size")
    outer = {key: config[key] for key in own if key in config}
    inner = {key: value for key, value in config.items() if key not in own and key != "architectures"}
    outer |= {
        "architectures": ["Eagle3Speculator"],
        "speculators_model_type": "eagle3",
        "speculators_config": {"verifier": {"name_or_path": "org/target"}},
        "transformer_layer_config": inner,
    }
    return outer, {name.replace("midlayer.", "layers.0."): values for name, values in found.items()}


def knowing(config: Json, target: Mapping[str, npt.NDArray[Any]]) -> dict[str, npt.NDArray[Any]]:
    """A head that reads nothing but the target's rows, and knows what `ring` says two tokens after each.

    So its first guess is right, and further ones are wrong.
    """
    embeddings = target["model.embed_tokens.weight"]
    found = tensors(config, {"hidden": embeddings.shape[1], "vocabulary": len(embeddings)})
    for name in ("self_attn.o_proj", "mlp.down_proj"):
        found[f"midlayer.{name}.weight"] *= 0
    found["norm.weight"][:] = 1
    found["fc.weight"][:] = np.eye(*found["fc.weight"].shape)
    known = np.asarray(RING)
    head = np.zeros((len(known), embeddings.shape[1]), np.float32)
    head[np.roll(np.arange(len(known)), -2)] = embeddings[known] * _MARGIN / embeddings.shape[1] ** 0.5
    found["lm_head.weight"] = head
    found["d2t"] = known.astype(np.int64) - np.arange(len(known))
    return found


def ring(found: Mapping[str, npt.NDArray[Any]], width: int) -> dict[str, npt.NDArray[Any]]:
    """The tensors of a Llama changed so that it says a ring of tokens, what follows a token depending on no other."""
    basis, _ = np.linalg.qr(np.random.default_rng(0).normal(size=(width, width)))
    known = basis[: len(RING)].astype(np.float32) * width**0.5
    changed = dict(found)
    silent = ("o_proj.weight", "down_proj.weight")
    changed |= {name: np.zeros_like(values) for name, values in found.items() if name.endswith(silent)}
    changed["model.norm.weight"] = np.ones_like(changed["model.norm.weight"])
    embeddings = changed["model.embed_tokens.weight"].copy()
    embeddings[RING] = known
    head = np.zeros_like(embeddings)
    head[np.roll(RING, -1)] = known * _MARGIN / width**0.5
    return changed | {"model.embed_tokens.weight": embeddings, "lm_head.weight": head}


class Reference:
    """What a head computes, in float64."""

    def __init__(self, config: Json, found: Mapping[str, npt.NDArray[Any]], vocabulary: int) -> None:
        self._config, self._vocabulary = config, vocabulary
        self._tensors = {name.replace("midlayer.", ""): np.asarray(values) for name, values in found.items()}
        self._heads, self._kv = config["num_attention_heads"], config["num_key_value_heads"]
        self._dim = config.get("head_dim", config["hidden_size"] // self._heads)

    def logits(self, features: Floats, tokens: Sequence[int], path: Sequence[int]) -> Floats:
        """The logits after `tokens`, the target's rows of all but the last of them, and each token of `path`."""
        rows = np.asarray(features, np.float64)
        if self._config.get("norm_before_fc"):
            rows = self._norm(rows, "input_norm.weight")
        g, keys = [*(rows @ self._matrix("fc").T)], list(tokens[1:])
        found = []
        for n in range(len(path) + 1):
            states = self._layer(np.array(keys), np.stack(g))
            found.append(self._scattered(self._norm(states[-1], "norm.weight") @ self._matrix("lm_head").T))
            if n < len(path):
                g.append(states[-1])
                keys.append(path[n])
        return np.stack(found)

    def _layer(self, tokens: npt.NDArray[np.int64], g: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        normed = self._norm(g, "hidden_norm.weight")
        both = np.concatenate(
            [self._norm(self._matrix("embed_tokens")[tokens], "input_layernorm.weight"), normed], axis=1
        )
        return self._changed(both, normed if self._config.get("norm_before_residual") else g)

    def _changed(self, x: npt.NDArray[np.float64], stream: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """The stream after a layer whose attention reads x."""
        q, k = (self._turned(self._linear(f"self_attn.{each}_proj", x)) for each in "qk")
        v = self._linear("self_attn.v_proj", x).reshape(len(x), -1, self._dim)
        k, v = (np.repeat(each, self._heads // self._kv, axis=1) for each in (k, v))
        scores = np.einsum("qhd,khd->hqk", q, k) / self._dim**0.5
        scores[:, np.triu(np.ones((len(x), len(x)), bool), 1)] = -np.inf
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        mixed = np.einsum("hqk,khd->qhd", weights, v).reshape(len(x), -1)
        stream = stream + self._linear("self_attn.o_proj", mixed)
        inner = self._norm(stream, "post_attention_layernorm.weight")
        gate = self._linear("mlp.gate_proj", inner)
        inside = gate / (1 + np.exp(-gate)) * self._linear("mlp.up_proj", inner)
        changed: npt.NDArray[np.float64] = stream + self._linear("mlp.down_proj", inside)
        return changed

    def _linear(self, name: str, x: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        product: npt.NDArray[np.float64] = x @ self._matrix(name).T
        return product + self._tensors.get(f"{name}.bias", 0)

    def _turned(self, x: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        x, half = x.reshape(len(x), -1, self._dim), self._dim // 2
        angles = np.arange(len(x))[:, None] * self._config.get("rope_theta", 1e4) ** (-np.arange(half) / half)
        cos, sin = np.cos(angles)[:, None], np.sin(angles)[:, None]
        first, second = x[..., :half], x[..., half:]
        return np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)

    def _norm(self, x: npt.NDArray[np.float64], name: str) -> npt.NDArray[np.float64]:
        scale = np.sqrt((x**2).mean(-1, keepdims=True) + self._config["rms_norm_eps"])
        return x / scale * self._tensors[name]

    def _matrix(self, name: str) -> npt.NDArray[np.float64]:
        return self._tensors[f"{name}.weight"].astype(np.float64)

    def _scattered(self, row: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        if "d2t" not in self._tensors:
            return row
        whole = np.full(self._vocabulary, -np.inf)
        whole[self._tensors["d2t"] + np.arange(len(row))] = row
        return whole
