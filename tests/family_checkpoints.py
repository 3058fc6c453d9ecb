"""A tiny random checkpoint of every family, as transformers would save it: what is special about each stands here.

    make(folder, "gemma3")

Nothing here reads the package: transformers loads the same folders (benchmarks/families.py).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from . import checkpoints, recent_checkpoints

Json = dict[str, Any]
Floats = npt.NDArray[np.float32]
Shapes = Iterator[tuple[str, tuple[int, ...]]]

_PLAIN: Json = {
    "hidden_act": "silu",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 5,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "bos_token_id": 0,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
_GEMMA = {
    "hidden_activation": "gelu_pytorch_tanh",
    "tie_word_embeddings": True,
    "head_dim": 32,
    "query_pre_attn_scalar": 32,
    "sliding_window": 8,
    "num_hidden_layers": 6,
}
_LONGROPE = {
    "type": "longrope",
    "short_factor": [1.0 + 0.1 * i for i in range(8)],
    "long_factor": [2.0 + 0.5 * i for i in range(8)],
}
CONFIGS: dict[str, Json] = {
    "llama": {"architectures": ["LlamaForCausalLM"]},
    "mistral": {"architectures": ["MistralForCausalLM"], "sliding_window": None},
    "qwen2": {"architectures": ["Qwen2ForCausalLM"]},
    "qwen3": {"architectures": ["Qwen3ForCausalLM"], "head_dim": 32},
    "mixtral": {
        "architectures": ["MixtralForCausalLM"],
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "sliding_window": None,
    },
    "qwen3moe": {
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        "head_dim": 32,
        "num_experts": 6,
        "num_experts_per_tok": 3,
        "moe_intermediate_size": 32,
        "norm_topk_prob": True,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
    },
    "granite": {
        "architectures": ["GraniteForCausalLM"],
        "embedding_multiplier": 3.0,
        "residual_multiplier": 0.22,
        "attention_multiplier": 0.4,
        "logits_scaling": 2.0,
        "attention_bias": True,
    },
    "olmo2": {"architectures": ["Olmo2ForCausalLM"]},
    "smollm3": {"architectures": ["SmolLM3ForCausalLM"], "tie_word_embeddings": True},
    "phi3": {"architectures": ["Phi3ForCausalLM"], "original_max_position_embeddings": 512},
    "phi4-mini": {
        "architectures": ["Phi3ForCausalLM"],
        "model_type": "phi3",
        "hidden_size": 128,
        "partial_rotary_factor": 0.5,
        "rope_scaling": _LONGROPE,
        "max_position_embeddings": 2048,
        "original_max_position_embeddings": 256,
    },
    "gemma3": {
        "architectures": ["Gemma3ForCausalLM"],
        "model_type": "gemma3_text",
        **_GEMMA,
        "rope_theta": 1e6,
        "rope_local_base_freq": 100.0,
        "rope_scaling": {"rope_type": "linear", "factor": 8.0},
        "sliding_window_pattern": 3,
    },
    "gemma2": {
        "architectures": ["Gemma2ForCausalLM"],
        **_GEMMA,
        "attn_logit_softcapping": 5.0,
        "final_logit_softcapping": 7.0,
    },
    "starcoder2": {
        "architectures": ["Starcoder2ForCausalLM"],
        "hidden_act": "gelu_pytorch_tanh",
        "norm_epsilon": 1e-5,
        "use_bias": True,
        "sliding_window": 100,
        "tie_word_embeddings": True,
    },
    "gpt2": {
        "architectures": ["GPT2LMHeadModel"],
        "activation_function": "gelu_new",
        "n_embd": 64,
        "n_layer": 5,
        "n_head": 4,
        "n_positions": 256,
        "n_ctx": 256,
        "tie_word_embeddings": True,
    },
    **recent_checkpoints.CONFIGS,
}
#: Mixtures of experts that both formats take.
SPARSE = ("mixtral", "qwen3moe", "qwen35moe")
#: With layers that have a state, written for ONNX Runtime, which OpenVINO does not compute.
RECURRENT = ("lfm2", "qwen35")
#: All that ONNX is not written for without quantization.
GGUF_ONLY = tuple(kind for kind in recent_checkpoints.CONFIGS if kind not in (*RECURRENT, *SPARSE))
#: Its tokenizer's kind, tiny. Granite 3's and StarCoder2's cut as SmolLM's does.
TOKENIZERS = {
    "llama": "llama-3",
    "mistral": "tekken",
    "mixtral": "spm-both",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "qwen3moe": "qwen3",
    "granite": "smollm",
    "olmo2": "cl100k",
    "smollm3": "llama-3",
    "phi3": "phi-3",
    "phi4-mini": "o200k",
    "gemma2": "gemma",
    "gemma3": "gemma",
    "starcoder2": "smollm",
    "gpt2": "gpt-2",
    **recent_checkpoints.TOKENIZERS,
}


def config(kind: str, vocabulary: int) -> Json:
    """Its config.json."""
    plain: Json = {} if kind == "gpt2" else _PLAIN
    ends: Json = {"bos_token_id": 0, "eos_token_id": 2}
    return {"model_type": kind, **plain, **ends, "vocab_size": vocabulary, **CONFIGS[kind]}


def make(folder: Path, kind: str, seed: int = 0, fused: bool = False, **changes: Any) -> Path:
    """A checkpoint with its tokenizer; `changes` override config.json before the tensors are drawn.

    With `fused` a layer's experts are one tensor, as transformers 5 holds them.
    """
    folder.mkdir(parents=True, exist_ok=True)
    vocabulary = checkpoints.write_tokenizer(folder, TOKENIZERS[kind])
    described = config(kind, vocabulary) | changes
    (folder / "config.json").write_text(json.dumps(described), encoding="utf-8")
    tensors = _drawn(_shapes(described), described, seed)
    if fused:
        tensors = _fused(tensors)
    checkpoints.write_safetensors(folder / "model.safetensors", tensors)
    return folder


def _drawn(shapes: Shapes, described: Json, seed: int) -> dict[str, Floats]:
    draw = np.random.default_rng(seed)
    tensors = {}
    for name, shape in shapes:
        values = draw.standard_normal(shape)
        special = recent_checkpoints.scaled(name, values)
        if special is not None:
            values = special
        elif len(shape) == 1 or name.endswith("_bias"):
            bare = "norm" in name and _bare_norm(name, described)
            values = 0.3 * values + (0 if bare or name.endswith("bias") else 1)
        elif "embed_tokens" not in name and "wte" not in name and "wpe" not in name:
            values *= 2 / (shape[0] if "Conv1D" in name or described["model_type"] == "gpt2" else shape[1]) ** 0.5
        tensors[name] = values.astype(np.float32)
    return tensors


def assistant(folder: Path, target: Path, seed: int = 1) -> Path:
    """An assistant of a Gemma 4, with its tokenizer."""
    folder.mkdir(parents=True, exist_ok=True)
    checkpoints.write_tokenizer(folder, "gemma4")
    described, shapes = recent_checkpoints.gemma4_assistant(json.loads((target / "config.json").read_text()))
    (folder / "config.json").write_text(json.dumps(described), encoding="utf-8")
    checkpoints.write_safetensors(folder / "model.safetensors", _drawn(shapes, described["text_config"], seed))
    return folder


def _bare_norm(name: str, config: Json) -> bool:
    gemma = config["model_type"].startswith("gemma") and not config["model_type"].startswith("gemma4")
    return gemma or recent_checkpoints.bare_norm(name, config)


def _fused(tensors: Mapping[str, Floats]) -> dict[str, Floats]:
    """The experts of each layer as one tensor, gate above up."""
    found: dict[str, Floats] = {}
    layers: dict[tuple[str, int], dict[str, Floats]] = {}
    for name, values in tensors.items():
        block, _, rest = name.replace("block_sparse_moe", "mlp").partition(".experts.")
        if rest:
            expert, part, _ = rest.split(".")
            layers.setdefault((block, int(expert)), {})[part] = values
        else:
            found[block] = values
    for block in dict.fromkeys(block for block, _ in layers):
        own = [parts for (name, _), parts in sorted(layers.items()) if name == block]
        gate, up, down = ("w1", "w3", "w2") if "w1" in own[0] else ("gate_proj", "up_proj", "down_proj")
        found[f"{block}.experts.gate_up_proj"] = np.stack([np.concatenate([one[gate], one[up]]) for one in own])
        found[f"{block}.experts.down_proj"] = np.stack([one[down] for one in own])
    return found


def _shapes(config: Mapping[str, Any]) -> Shapes:
    if config["model_type"] in {entry.get("model_type") for entry in recent_checkpoints.CONFIGS.values()}:
        yield from recent_checkpoints.shapes(config)
        return
    if config["model_type"] == "gpt2":
        yield from _gpt2(config)
        return
    h, v = config["hidden_size"], config["vocab_size"]
    yield "model.embed_tokens.weight", (v, h)
    for layer in range(config["num_hidden_layers"]):
        for name, shape in _layer(config):
            yield f"model.layers.{layer}.{name}", shape
    yield from _norm("model.norm", h, config)
    if not config["tie_word_embeddings"]:
        yield "lm_head.weight", (v, h)


def _norm(name: str, width: int, config: Mapping[str, Any]) -> Shapes:
    yield f"{name}.weight", (width,)
    if config["model_type"] == "starcoder2":
        yield f"{name}.bias", (width,)


def _layer(config: Mapping[str, Any]) -> Shapes:
    kind, h = config["model_type"], config["hidden_size"]
    width = config.get("head_dim") or h // config["num_attention_heads"]
    q, kv = config["num_attention_heads"] * width, config["num_key_value_heads"] * width
    norms = ["input_layernorm", "post_attention_layernorm"]
    if kind.startswith("gemma"):
        norms += ["pre_feedforward_layernorm", "post_feedforward_layernorm"]
    if kind == "olmo2":
        norms = ["post_attention_layernorm", "post_feedforward_layernorm"]
    for norm in norms:
        yield from _norm(norm, h, config)
    yield from _head_norms(kind, q, kv, width)
    yield from _matrices(config, q, kv)


def _head_norms(kind: str, q: int, kv: int, width: int) -> Shapes:
    if kind in {"qwen3", "qwen3_moe", "gemma3_text", "olmo2"}:
        yield "self_attn.q_norm.weight", (q if kind == "olmo2" else width,)
        yield "self_attn.k_norm.weight", (kv if kind == "olmo2" else width,)


def _matrices(config: Mapping[str, Any], q: int, kv: int) -> Shapes:
    kind, h, ffn = config["model_type"], config["hidden_size"], config["intermediate_size"]
    attention = {"q_proj": (q, h), "k_proj": (kv, h), "v_proj": (kv, h), "o_proj": (h, q)}
    mlp = {"gate_proj": (ffn, h), "up_proj": (ffn, h), "down_proj": (h, ffn)}
    if kind == "phi3":
        attention = {"qkv_proj": (q + 2 * kv, h), "o_proj": (h, q)}
        mlp = {"gate_up_proj": (2 * ffn, h), "down_proj": (h, ffn)}
    if kind == "starcoder2":
        mlp = {"c_fc": (ffn, h), "c_proj": (h, ffn)}
    if kind in {"mixtral", "qwen3_moe"}:
        mlp = {}
        yield from _experts(config)
    biased = {"qwen2": {"q_proj", "k_proj", "v_proj"}, "starcoder2": {*attention, *mlp}}.get(kind, set())
    if config.get("attention_bias"):
        biased = set(attention)
    for part, tensors in (("self_attn", attention), ("mlp", mlp)):
        for name, shape in tensors.items():
            yield f"{part}.{name}.weight", shape
            if name in biased:
                yield f"{part}.{name}.bias", shape[:1]


def _experts(config: Mapping[str, Any]) -> Shapes:
    h, ffn = config["hidden_size"], config.get("moe_intermediate_size", config["intermediate_size"])
    count = config.get("num_local_experts") or config["num_experts"]
    block, names = ("block_sparse_moe", ("w1", "w2", "w3"))
    if config["model_type"] == "qwen3_moe":
        block, names = "mlp", ("gate_proj", "down_proj", "up_proj")
    yield f"{block}.gate.weight", (count, h)
    for expert in range(count):
        for name, shape in zip(names, ((ffn, h), (h, ffn), (ffn, h)), strict=True):
            yield f"{block}.experts.{expert}.{name}.weight", shape


def _gpt2(config: Mapping[str, Any]) -> Shapes:
    h = config["n_embd"]
    yield "transformer.wte.weight", (config["vocab_size"], h)
    yield "transformer.wpe.weight", (config["n_positions"], h)
    for layer in range(config["n_layer"]):
        name = f"transformer.h.{layer}"
        for part, shape in (
            ("ln_1", (h,)),
            ("attn.c_attn", (h, 3 * h)),
            ("attn.c_proj", (h, h)),
            ("ln_2", (h,)),
            ("mlp.c_fc", (h, 4 * h)),
            ("mlp.c_proj", (4 * h, h)),
        ):
            yield f"{name}.{part}.weight", shape
            yield f"{name}.{part}.bias", shape[-1:]
    yield "transformer.ln_f.weight", (h,)
    yield "transformer.ln_f.bias", (h,)
