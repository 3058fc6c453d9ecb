"""The forward passes of all families in NumPy float32, from a Hugging Face checkpoint: slow, plain, the judge in tests.

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
        self._kind = str(self._config.get("model_type", "llama"))
        self._gemma = self._kind.startswith("gemma")
        if self._kind == "gpt2":
            self._rename_gpt2()
        if self._kind == "mixtral":
            self._rename_mixtral()

    def _rename_gpt2(self) -> None:
        """GPT-2 in the words of the others, its matrices turned."""
        words = {"hidden_size": "n_embd", "num_hidden_layers": "n_layer", "num_attention_heads": "n_head"}
        self._config |= {word: self._config[theirs] for word, theirs in words.items()}
        self._config |= {"hidden_act": "gelu_new", "norm_epsilon": self._config.get("layer_norm_epsilon", 1e-5)}
        self._config["num_key_value_heads"] = self._config["n_head"]
        spelt = {
            "transformer.wte": "model.embed_tokens", "transformer.ln_f": "model.norm",
            "transformer.h.": "model.layers.",
            ".ln_1": ".input_layernorm", ".ln_2": ".post_attention_layernorm",
            "attn.c_attn": "self_attn.qkv_proj", "attn.c_proj": "self_attn.o_proj",
        }  # fmt: skip
        for name in list(self._tensors):
            values, ours = self._tensors.pop(name), name
            for theirs, word in spelt.items():
                ours = ours.replace(theirs, word)
            self._tensors[ours] = values.T if values.ndim == 2 and ".layers." in ours else values

    def _rename_mixtral(self) -> None:
        """Mixtral in the words of Qwen3-MoE."""
        spelt = {"block_sparse_moe": "mlp", ".w1.": ".gate_proj.", ".w2.": ".down_proj.", ".w3.": ".up_proj."}
        for name in list(self._tensors):
            ours = name
            for theirs, word in spelt.items():
                ours = ours.replace(theirs, word)
            self._tensors[ours] = self._tensors.pop(name)

    def logits(self, tokens: list[int]) -> Floats:
        """float32 [len(tokens), vocabulary]."""
        embedding = self._tensors["model.embed_tokens.weight"]
        x = embedding[tokens] * np.float32(self._config.get("embedding_multiplier", 1.0))
        if self._gemma:
            x = x * np.float32(self._config["hidden_size"] ** 0.5)
        if self._kind == "gpt2":
            x = x + self._tensors["transformer.wpe.weight"][: len(tokens)]
        share = np.float32(self._config.get("residual_multiplier", 1.0))
        for layer in range(self._config["num_hidden_layers"]):
            name = f"model.layers.{layer}"
            before, between = "input_layernorm", "post_attention_layernorm"
            if self._gemma:
                between = "pre_feedforward_layernorm"
            if self._kind == "olmo2":
                before = between = ""
            said = self._attention(f"{name}.self_attn", self._norm(f"{name}.{before}", x) if before else x, layer)
            x = x + share * self._after(f"{name}.post_attention_layernorm", said)
            said = self._mlp(f"{name}.mlp", self._norm(f"{name}.{between}", x) if between else x)
            x = x + share * self._after(f"{name}.post_feedforward_layernorm", said)
        x = self._norm("model.norm", x)
        tied = self._config.get("tie_word_embeddings") or "lm_head.weight" not in self._tensors
        found = x @ (embedding if tied else self._tensors["lm_head.weight"]).T
        return self._capped(found / np.float32(self._config.get("logits_scaling", 1.0)), "final_logit_softcapping")

    def _after(self, name: str, x: Floats) -> Floats:
        return self._norm(name, x) if self._gemma or self._kind == "olmo2" else x

    def _capped(self, x: Floats, key: str) -> Floats:
        cap = self._config.get(key)
        return np.float32(cap) * np.tanh(x / np.float32(cap)) if cap else x

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
        weight = self._tensors[f"{name}.weight"] + np.float32(self._gemma)
        if f"{name}.bias" in self._tensors:
            x = x - x.mean(-1, keepdims=True)
        epsilon = self._config.get("rms_norm_eps") or 1e-5
        if "norm_epsilon" in self._config:
            epsilon = self._config["norm_epsilon"]
        scale = 1 / np.sqrt((x * x).mean(-1, keepdims=True) + np.float32(epsilon))
        return x * scale * weight + self._tensors.get(f"{name}.bias", np.float32(0))

    def _experts(self, name: str, x: Floats) -> Floats:
        """The likeliest experts of each token, weighted; their weights add up to 1."""
        found = np.zeros_like(x)
        for row, scores in enumerate(self._linear(f"{name}.gate", x)):
            chosen = np.argsort(-scores)[: self._config["num_experts_per_tok"]]
            weights = np.exp(scores[chosen] - scores.max())
            for expert, weight in zip(chosen, weights / weights.sum(), strict=True):
                found[row] += weight * self._mlp(f"{name}.experts.{expert}", x[row])
        return found

    def _mlp(self, name: str, x: Floats) -> Floats:
        if f"{name}.gate.weight" in self._tensors:
            return self._experts(name, x)
        if f"{name}.c_fc.weight" in self._tensors:
            return self._linear(f"{name}.c_proj", _gelu(self._linear(f"{name}.c_fc", x)))
        if f"{name}.gate_up_proj.weight" in self._tensors:
            gate, up = np.split(self._linear(f"{name}.gate_up_proj", x), 2, -1)
        else:
            gate, up = self._linear(f"{name}.gate_proj", x), self._linear(f"{name}.up_proj", x)
        active = _gelu(gate) if self._gemma else gate / (1 + np.exp(-gate))
        return self._linear(f"{name}.down_proj", active * up)

    def _attention(self, name: str, x: Floats, layer: int) -> Floats:
        heads, kv_heads = self._config["num_attention_heads"], self._config["num_key_value_heads"]
        n, windowed = len(x), self._windowed(layer)
        if f"{name}.qkv_proj.weight" in self._tensors:
            whole = self._linear(f"{name}.qkv_proj", x)
            width = whole.shape[1] // (heads + 2 * kv_heads)
            parts = dict(zip("qkv", np.split(whole, [heads * width, (heads + kv_heads) * width], -1), strict=True))
        else:
            parts = {part: self._linear(f"{name}.{part}_proj", x) for part in "qkv"}

        def split(part: str) -> Floats:
            y, wide = parts[part], self._kind == "olmo2"
            normed = f"{name}.{part}_norm.weight" in self._tensors
            y = self._norm(f"{name}.{part}_norm", y) if normed and wide else y
            y = y.reshape(n, heads if part == "q" else kv_heads, -1).transpose(1, 0, 2)
            return self._norm(f"{name}.{part}_norm", y) if normed and not wide else y

        def rotate(y: Floats) -> Floats:
            if self._kind == "gpt2" or (self._kind == "smollm3" and (layer + 1) % 4 == 0):
                return y
            cos, sin = self._rotation(n, windowed)
            width = cos.shape[-1]
            first, second = np.split(y[..., :width], 2, axis=-1)
            turned = y[..., :width] * cos + np.concatenate([-second, first], -1) * sin
            return np.concatenate([turned, y[..., width:]], -1).astype(np.float32, copy=False)

        q, k = rotate(split("q")), rotate(split("k")).repeat(heads // kv_heads, 0)
        v = split("v").repeat(heads // kv_heads, 0)
        scale = float(self._config.get("query_pre_attn_scalar") or q.shape[-1]) ** -0.5
        scores = q @ k.transpose(0, 2, 1) * np.float32(self._config.get("attention_multiplier", scale))
        scores = self._capped(scores, "attn_logit_softcapping")
        seen = np.tril(np.ones((n, n), bool))
        if windowed:
            seen &= ~np.tril(np.ones((n, n), bool), -self._config["sliding_window"])
        scores = np.where(seen, scores, np.float32(-np.inf))
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        return self._linear(f"{name}.o_proj", (weights @ v).transpose(1, 0, 2).reshape(n, -1))

    def _windowed(self, layer: int) -> bool:
        period = {"gemma2": 2, "gemma3_text": self._config.get("sliding_window_pattern", 6)}.get(self._kind, 0)
        return bool(period and (layer + 1) % period)

    def _rotation(self, n: int, local: bool = False) -> tuple[Floats, Floats]:
        """cos and sin of position times frequency, [n, as much of a head as is turned], both halves alike."""
        config = self._config
        width = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
        scaling = config.get("rope_parameters") or config.get("rope_scaling") or {}
        theta = scaling.get("rope_theta", config.get("rope_theta", 10000.0))
        if local and "rope_local_base_freq" in config:
            scaling, theta = {}, config["rope_local_base_freq"]
        width, magnitude = int(width * config.get("partial_rotary_factor", 1.0)), 1.0
        frequencies = theta ** (-np.arange(0, width, 2) / width)
        kind = scaling.get("rope_type", scaling.get("type", "default"))
        if kind == "linear":
            frequencies = frequencies / scaling["factor"]
        elif kind == "llama3":
            frequencies = np.array([_llama3(frequency, scaling) for frequency in frequencies])
        elif kind == "longrope":
            original = config["original_max_position_embeddings"]
            frequencies = frequencies / np.array(scaling["short_factor"])
            magnitude = (1 + np.log(config["max_position_embeddings"] / original) / np.log(original)) ** 0.5
        angles = np.outer(np.arange(n), np.concatenate([frequencies, frequencies]))
        return (magnitude * np.cos(angles)).astype(np.float32), (magnitude * np.sin(angles)).astype(np.float32)


def _gelu(x: Floats) -> Floats:
    """Its tanh approximation."""
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi).astype(np.float32) * (x + np.float32(0.044715) * x**3)))


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
