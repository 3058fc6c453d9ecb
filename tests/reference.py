"""The Llama forward pass in NumPy float32, from a Hugging Face checkpoint: slow, plain, the judge in tests.

It shares no code with the package: it reads config.json and the safetensors itself.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]


def read_tensors(folder: Path) -> dict[str, Floats]:
    """All tensors of a checkpoint as float32."""
    found: dict[str, Floats] = {}
    for path in sorted(folder.glob("model*.safetensors")):
        data = path.read_bytes()
        length = int.from_bytes(data[:8], "little")
        for name, entry in json.loads(data[8 : 8 + length]).items():
            if name == "__metadata__":
                continue
            start, end = (8 + length + offset for offset in entry["data_offsets"])
            if entry["dtype"] == "BF16":
                values = (np.frombuffer(data[start:end], "<u2").astype(np.uint32) << 16).view(np.float32)
            else:
                kind = {"F32": "<f4", "F16": "<f2"}[entry["dtype"]]
                values = np.frombuffer(data[start:end], kind).astype(np.float32)
            found[name] = values.reshape(entry["shape"])
    return found


class Reference:
    """What a checkpoint folder computes."""

    def __init__(self, folder: Path) -> None:
        self._config: dict[str, Any] = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        self._tensors = read_tensors(folder)

    def logits(self, tokens: list[int]) -> Floats:
        """float32 [len(tokens), vocabulary]."""
        embedding = self._tensors["model.embed_tokens.weight"]
        x = embedding[tokens]
        cos, sin = self._rotation(len(tokens))
        for layer in range(self._config["num_hidden_layers"]):
            name = f"model.layers.{layer}"
            x = x + self._attention(f"{name}.self_attn", self._norm(f"{name}.input_layernorm", x), cos, sin)
            x = x + self._mlp(f"{name}.mlp", self._norm(f"{name}.post_attention_layernorm", x))
        x = self._norm("model.norm", x)
        tied = self._config["tie_word_embeddings"] or "lm_head.weight" not in self._tensors
        return x @ (embedding if tied else self._tensors["lm_head.weight"]).T

    def agrees(self, tokens: list[int], text: list[int]) -> bool:
        """Whether `text` is this model's greedy continuation of `tokens`: its likeliest token at every step.

        One pass says it of all steps, since no position sees those after it.
        """
        logits = self.logits([*tokens, *text])
        return logits[len(tokens) - 1 : -1].argmax(-1).tolist() == text

    def _linear(self, name: str, x: Floats) -> Floats:
        y = x @ self._tensors[f"{name}.weight"].T
        return y + self._tensors[f"{name}.bias"] if f"{name}.bias" in self._tensors else y

    def _norm(self, name: str, x: Floats) -> Floats:
        scale = 1 / np.sqrt((x * x).mean(-1, keepdims=True) + np.float32(self._config["rms_norm_eps"]))
        return x * scale * self._tensors[f"{name}.weight"]

    def _mlp(self, name: str, x: Floats) -> Floats:
        gate = self._linear(f"{name}.gate_proj", x)
        return self._linear(f"{name}.down_proj", gate / (1 + np.exp(-gate)) * self._linear(f"{name}.up_proj", x))

    def _attention(self, name: str, x: Floats, cos: Floats, sin: Floats) -> Floats:
        heads, kv_heads = self._config["num_attention_heads"], self._config["num_key_value_heads"]
        n = len(x)

        def split(part: str, count: int) -> Floats:
            return self._linear(f"{name}.{part}", x).reshape(n, count, -1).transpose(1, 0, 2)

        def rotate(y: Floats) -> Floats:
            first, second = np.split(y, 2, axis=-1)
            turned = y * cos + np.concatenate([-second, first], -1) * sin
            return turned.astype(np.float32, copy=False)

        def normed(part: str, y: Floats) -> Floats:
            return self._norm(f"{name}.{part}", y) if f"{name}.{part}.weight" in self._tensors else y

        q = rotate(normed("q_norm", split("q_proj", heads)))
        k = rotate(normed("k_norm", split("k_proj", kv_heads))).repeat(heads // kv_heads, 0)
        v = split("v_proj", kv_heads).repeat(heads // kv_heads, 0)
        scores = q @ k.transpose(0, 2, 1) / np.float32(q.shape[-1] ** 0.5)
        scores = np.where(np.tril(np.ones((n, n), bool)), scores, np.float32(-np.inf))
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        return self._linear(f"{name}.o_proj", (weights @ v).transpose(1, 0, 2).reshape(n, -1))

    def _rotation(self, n: int) -> tuple[Floats, Floats]:
        """cos and sin of position times frequency, [n, head_dim], both halves alike."""
        config = self._config
        width = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
        scaling = config.get("rope_parameters") or config.get("rope_scaling") or {}
        theta = scaling.get("rope_theta", config.get("rope_theta", 10000.0))
        frequencies = theta ** (-np.arange(0, width, 2) / width)
        kind = scaling.get("rope_type", scaling.get("type", "default"))
        if kind == "linear":
            frequencies = frequencies / scaling["factor"]
        elif kind == "llama3":
            frequencies = np.array([_llama3(frequency, scaling) for frequency in frequencies])
        angles = np.outer(np.arange(n), np.concatenate([frequencies, frequencies]))
        return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)


def _llama3(frequency: float, scaling: dict[str, Any]) -> float:
    """Llama 3.1's rule, case by case."""
    wavelength = 2 * np.pi / frequency
    original = scaling["original_max_position_embeddings"]
    if wavelength < original / scaling["high_freq_factor"]:
        return frequency
    if wavelength > original / scaling["low_freq_factor"]:
        return frequency / scaling["factor"]
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    smooth = (original / wavelength - low) / (high - low)
    return (1 - smooth) * frequency / scaling["factor"] + smooth * frequency
