"""What is special about the checkpoints of models with recurrent layers, and of the newer mixtures of experts.

CONFIGS["qwen35"], TOKENIZERS["qwen35"], shapes(config), scaled(name, values)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

Json = dict[str, Any]
Shapes = Iterator[tuple[str, tuple[int, ...]]]

_QWEN35: Json = {
    "architectures": ["Qwen3_5ForCausalLM"],
    "model_type": "qwen3_5_text",
    "num_hidden_layers": 4,
    "head_dim": 32,
    "layer_types": ["linear_attention"] * 3 + ["full_attention"],
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 6,
    "mtp_num_hidden_layers": 1,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 10000.0,
        "partial_rotary_factor": 0.5,
        "mrope_section": [3, 3, 2],
        "mrope_interleaved": True,
    },
}
CONFIGS: dict[str, Json] = {
    "qwen35": _QWEN35,
    "qwen35moe": {
        **_QWEN35,
        "architectures": ["Qwen3_5MoeForCausalLM"],
        "model_type": "qwen3_5_moe_text",
        "num_experts": 6,
        "num_experts_per_tok": 3,
        "moe_intermediate_size": 32,
        "shared_expert_intermediate_size": 48,
    },
    "qwen3next": {
        **_QWEN35,
        "architectures": ["Qwen3NextForCausalLM"],
        "model_type": "qwen3_next",
        "num_experts": 6,
        "num_experts_per_tok": 3,
        "moe_intermediate_size": 32,
        "shared_expert_intermediate_size": 48,
        "norm_topk_prob": True,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5},
    },
    "gpt-oss": {
        "architectures": ["GptOssForCausalLM"],
        "model_type": "gpt_oss",
        "num_hidden_layers": 4,
        "head_dim": 32,
        "attention_bias": True,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "sliding_window": 8,
        "max_position_embeddings": 4096,
        "swiglu_limit": 7.0,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 1000.0,
            "factor": 8.0,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "original_max_position_embeddings": 512,
            "truncate": True,
        },
    },
}
_LFM2: Json = {
    "architectures": ["Lfm2ForCausalLM"],
    "model_type": "lfm2",
    "num_hidden_layers": 4,
    "layer_types": ["conv", "conv", "full_attention", "conv"],
    "conv_L_cache": 3,
    "conv_bias": False,
    "norm_eps": 1e-5,
    "tie_word_embeddings": True,
    "block_auto_adjust_ff_dim": True,
    "block_ffn_dim_multiplier": 1.0,
    "block_multiple_of": 32,
}
_GRANITE: Json = {
    "architectures": ["GraniteMoeHybridForCausalLM"],
    "model_type": "granitemoehybrid",
    "num_hidden_layers": 4,
    "layer_types": ["mamba", "attention", "mamba", "mamba"],
    "embedding_multiplier": 3.0,
    "residual_multiplier": 0.22,
    "attention_multiplier": 0.4,
    "logits_scaling": 2.0,
    "vocab_size": 704,  # llama.cpp's converter takes multiples of 8 only
    "mamba_n_heads": 8,
    "mamba_d_head": 16,
    "mamba_n_groups": 2,
    "mamba_d_state": 16,
    "mamba_d_conv": 4,
    "mamba_expand": 2,
    "mamba_conv_bias": True,
    "mamba_proj_bias": False,
    "position_embedding_type": "nope",
    "num_local_experts": 0,
    "num_experts_per_tok": 0,
    "shared_intermediate_size": 96,
    "tie_word_embeddings": True,
}
_GEMMA4: Json = {
    "architectures": ["Gemma4ForCausalLM"],
    "model_type": "gemma4_text",
    "hidden_activation": "gelu_pytorch_tanh",
    "num_hidden_layers": 6,
    "layer_types": ["sliding_attention", "sliding_attention", "full_attention"] * 2,
    "sliding_window": 8,
    "head_dim": 16,
    "per_layer_config": {str(layer): {"head_dim": 32, "num_key_value_heads": 1} for layer in (2, 5)},
    "attention_k_eq_v": True,
    "num_kv_shared_layers": 0,
    "hidden_size_per_layer_input": 0,
    "use_double_wide_mlp": False,
    "enable_moe_block": False,
    "final_logit_softcapping": 7.0,
    "rope_parameters": {
        "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
        "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1e4},
    },
    "tie_word_embeddings": True,
    "unk_token_id": 0,
    "bos_token_id": 1,
}
CONFIGS |= {
    "gemma4": _GEMMA4,
    "gemma4-e": {
        **_GEMMA4,
        "attention_k_eq_v": False,
        "per_layer_config": {str(layer): {"head_dim": 32} for layer in (2, 5)},
        "num_kv_shared_layers": 3,
        "hidden_size_per_layer_input": 16,
        "vocab_size_per_layer_input": 605,
        "use_double_wide_mlp": True,
    },
    "gemma4-moe": {
        **_GEMMA4,
        "enable_moe_block": True,
        "num_experts": 5,
        "top_k_experts": 2,
        "moe_intermediate_size": 32,
    },
    "lfm2": _LFM2,
    "lfm2moe": {
        **{key: value for key, value in _LFM2.items() if not key.startswith("block_")},
        "architectures": ["Lfm2MoeForCausalLM"],
        "model_type": "lfm2_moe",
        "num_dense_layers": 1,
        "num_experts": 5,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
        "norm_topk_prob": True,
        "routed_scaling_factor": 1.0,
        "use_expert_bias": True,
    },
    "granite4-h": _GRANITE,
    "granite4-h-moe": {
        **_GRANITE,
        "num_local_experts": 5,
        "num_experts_per_tok": 2,
        "intermediate_size": 32,
        "shared_intermediate_size": 48,
    },
    "granite4": {**_GRANITE, "layer_types": ["attention"] * 4, "position_embedding_type": "rope"},
}
TOKENIZERS = {
    "gemma4": "gemma4",
    "gemma4-e": "gemma4",
    "gemma4-moe": "gemma4",
    "qwen35": "qwen35",
    "qwen35moe": "qwen35",
    "qwen3next": "qwen2",
    "gpt-oss": "o200k",
    "lfm2": "llama-3",
    "lfm2moe": "llama-3",
    "granite4-h": "cl100k",
    "granite4-h-moe": "cl100k",
    "granite4": "cl100k",
}


def scaled(name: str, values: npt.NDArray[Any]) -> npt.NDArray[Any] | None:
    """Standard normal numbers as the weights of this tensor; None for one that every family has."""
    if name.endswith(("A_log", "dt_bias", ".D", "sinks", "expert_bias")):
        return 0.5 * values
    if "conv" in name and values.ndim == 3:
        return values / values.shape[-1] ** 0.5
    return None


def bare_norm(name: str, config: Mapping[str, Any]) -> bool:
    """Whether a norm multiplies by 1 + its weight."""
    return str(config["model_type"]).startswith(("qwen3_5", "qwen3_next")) and not name.endswith(
        "linear_attn.norm.weight"
    )


def shapes(config: Mapping[str, Any]) -> Shapes:
    """The tensors of a checkpoint."""
    h, v = config["hidden_size"], config["vocab_size"]
    yield "model.embed_tokens.weight", (v, h)
    layer_of = _LAYERS.get(config["model_type"], _qwen35)
    if config.get("hidden_size_per_layer_input"):
        wide = config["num_hidden_layers"] * config["hidden_size_per_layer_input"]
        yield "model.embed_tokens_per_layer.weight", (v, wide)
        yield "model.per_layer_model_projection.weight", (wide, h)
        yield "model.per_layer_projection_norm.weight", (config["hidden_size_per_layer_input"],)
    for layer, kind in enumerate(config["layer_types"]):
        if config["model_type"] == "gemma4_text":
            yield from _under(f"model.layers.{layer}", _gemma4(config, layer))
            continue
        described = config if layer >= config.get("num_dense_layers", 0) else {**config, "num_experts": 0}
        yield from _under(f"model.layers.{layer}", layer_of(described, kind))
    yield f"model.{'embedding_norm' if config['model_type'].startswith('lfm2') else 'norm'}.weight", (h,)
    if not config["tie_word_embeddings"]:
        yield "lm_head.weight", (v, h)
    if config.get("mtp_num_hidden_layers"):
        yield "mtp.fc.weight", (h, 2 * h)
        for norm in ("norm", "pre_fc_norm_embedding", "pre_fc_norm_hidden"):
            yield f"mtp.{norm}.weight", (h,)
        yield from _under("mtp.layers.0", _qwen35(config, "full_attention"))


def _under(root: str, tensors: Shapes) -> Shapes:
    for name, shape in tensors:
        yield f"{root}.{name}", shape


def _qwen35(config: Mapping[str, Any], kind: str) -> Shapes:
    h, width = config["hidden_size"], config["head_dim"]
    q, kv = config["num_attention_heads"] * width, config["num_key_value_heads"] * width
    yield "input_layernorm.weight", (h,)
    yield "post_attention_layernorm.weight", (h,)
    if kind == "full_attention":
        yield "self_attn.q_proj.weight", (2 * q, h)
        yield from ((f"self_attn.{part}_proj.weight", (kv, h)) for part in "kv")
        yield "self_attn.o_proj.weight", (h, q)
        yield from ((f"self_attn.{part}_norm.weight", (width,)) for part in "qk")
    else:
        yield from _under("linear_attn", _delta_net(config))
    yield from _mlp("mlp", h, config["intermediate_size"]) if "num_experts" not in config else _experts(config)


def _delta_net(config: Mapping[str, Any]) -> Shapes:
    h, heads, head = config["hidden_size"], config["linear_num_value_heads"], config["linear_value_head_dim"]
    channels = heads * head + 2 * config["linear_num_key_heads"] * config["linear_key_head_dim"]
    if config["model_type"] == "qwen3_next":
        yield "in_proj_qkvz.weight", (channels + heads * head, h)
        yield "in_proj_ba.weight", (2 * heads, h)
    else:
        yield "in_proj_qkv.weight", (channels, h)
        yield "in_proj_z.weight", (heads * head, h)
        yield "in_proj_a.weight", (heads, h)
        yield "in_proj_b.weight", (heads, h)
    yield "conv1d.weight", (channels, 1, config["linear_conv_kernel_dim"])
    yield "dt_bias", (heads,)
    yield "A_log", (heads,)
    yield "norm.weight", (head,)
    yield "out_proj.weight", (h, heads * head)


def _mlp(name: str, h: int, ffn: int) -> Shapes:
    yield f"{name}.gate_proj.weight", (ffn, h)
    yield f"{name}.up_proj.weight", (ffn, h)
    yield f"{name}.down_proj.weight", (h, ffn)


def _experts(config: Mapping[str, Any]) -> Shapes:
    h = config["hidden_size"]
    yield "mlp.gate.weight", (config["num_experts"], h)
    for expert in range(config["num_experts"]):
        yield from _mlp(f"mlp.experts.{expert}", h, config["moe_intermediate_size"])
    yield from _mlp("mlp.shared_expert", h, config["shared_expert_intermediate_size"])
    yield "mlp.shared_expert_gate.weight", (1, h)


def _gpt_oss(config: Mapping[str, Any], kind: str) -> Shapes:
    h, ffn, experts = (config[key] for key in ("hidden_size", "intermediate_size", "num_local_experts"))
    q, kv = (config[f"num_{heads}_heads"] * config["head_dim"] for heads in ("attention", "key_value"))
    yield "input_layernorm.weight", (h,)
    yield "post_attention_layernorm.weight", (h,)
    for part, rows, columns in (("q", q, h), ("k", kv, h), ("v", kv, h), ("o", h, q)):
        yield f"self_attn.{part}_proj.weight", (rows, columns)
        yield f"self_attn.{part}_proj.bias", (rows,)
    yield "self_attn.sinks", (config["num_attention_heads"],)
    yield "mlp.router.weight", (experts, h)
    yield "mlp.router.bias", (experts,)
    yield "mlp.experts.gate_up_proj", (experts, h, 2 * ffn)
    yield "mlp.experts.gate_up_proj_bias", (experts, 2 * ffn)
    yield "mlp.experts.down_proj", (experts, ffn, h)
    yield "mlp.experts.down_proj_bias", (experts, h)


def _lfm2(config: Mapping[str, Any], kind: str) -> Shapes:
    h, ffn, experts = config["hidden_size"], config["intermediate_size"], config.get("num_experts", 0)
    kv = h // config["num_attention_heads"] * config["num_key_value_heads"]
    yield "operator_norm.weight", (h,)
    yield "ffn_norm.weight", (h,)
    if kind == "conv":
        yield "conv.in_proj.weight", (3 * h, h)
        yield "conv.conv.weight", (h, 1, config["conv_L_cache"])
        yield "conv.out_proj.weight", (h, h)
    else:
        for part, rows in (("q_proj", h), ("k_proj", kv), ("v_proj", kv), ("out_proj", h)):
            yield f"self_attn.{part}.weight", (rows, h)
        for norm in ("q_layernorm", "k_layernorm"):
            yield f"self_attn.{norm}.weight", (h // config["num_attention_heads"],)
    if config.get("block_auto_adjust_ff_dim"):
        ffn = -(-(2 * ffn // 3) // config["block_multiple_of"]) * config["block_multiple_of"]
    names = [f"feed_forward.experts.{expert}" for expert in range(experts)] or ["feed_forward"]
    rows = config["moe_intermediate_size"] if experts else ffn
    for name in names:
        for part, shape in (("w1", (rows, h)), ("w2", (h, rows)), ("w3", (rows, h))):
            yield f"{name}.{part}.weight", shape
    if experts:
        yield "feed_forward.gate.weight", (experts, h)
        yield "feed_forward.expert_bias", (experts,)


def _granite(config: Mapping[str, Any], kind: str) -> Shapes:
    h, experts = config["hidden_size"], config["num_local_experts"]
    kv = h // config["num_attention_heads"] * config["num_key_value_heads"]
    yield "input_layernorm.weight", (h,)
    yield "post_attention_layernorm.weight", (h,)
    if kind == "mamba":
        yield from _under("mamba", _mamba(config))
    else:
        for part, rows in (("q_proj", h), ("k_proj", kv), ("v_proj", kv), ("o_proj", h)):
            yield f"self_attn.{part}.weight", (rows, h)
    yield "shared_mlp.input_linear.weight", (2 * config["shared_intermediate_size"], h)
    yield "shared_mlp.output_linear.weight", (h, config["shared_intermediate_size"])
    if experts:
        yield "block_sparse_moe.router.layer.weight", (experts, h)
        yield "block_sparse_moe.input_linear.weight", (experts, 2 * config["intermediate_size"], h)
        yield "block_sparse_moe.output_linear.weight", (experts, h, config["intermediate_size"])


def _mamba(config: Mapping[str, Any]) -> Shapes:
    h, heads = config["hidden_size"], config["mamba_n_heads"]
    inner = heads * config["mamba_d_head"]
    channels = inner + 2 * config["mamba_n_groups"] * config["mamba_d_state"]
    yield "in_proj.weight", (inner + channels + heads, h)
    yield "conv1d.weight", (channels, 1, config["mamba_d_conv"])
    yield "conv1d.bias", (channels,)
    for name in ("dt_bias", "A_log", "D"):
        yield name, (heads,)
    yield "norm.weight", (inner,)
    yield "out_proj.weight", (h, inner)


def _gemma4(config: Mapping[str, Any], layer: int) -> Shapes:
    h, special = config["hidden_size"], config["per_layer_config"].get(str(layer), {})
    width, kv_heads = (special.get(key, config[key]) for key in ("head_dim", "num_key_value_heads"))
    q, kv = config["num_attention_heads"] * width, kv_heads * width
    shared = layer >= config["num_hidden_layers"] - config["num_kv_shared_layers"]
    norms = ["input", "post_attention", "pre_feedforward", "post_feedforward"]
    yield from ((f"{norm}_layernorm.weight", (h,)) for norm in norms)
    yield "self_attn.q_proj.weight", (q, h)
    yield "self_attn.q_norm.weight", (width,)
    yield "self_attn.o_proj.weight", (h, q)
    if not shared:
        yield "self_attn.k_proj.weight", (kv, h)
        yield "self_attn.k_norm.weight", (width,)
        if not (config["attention_k_eq_v"] and special):
            yield "self_attn.v_proj.weight", (kv, h)
    yield from _mlp("mlp", h, config["intermediate_size"] * (2 if shared and config["use_double_wide_mlp"] else 1))
    yield "layer_scalar", (1,)
    if own := config["hidden_size_per_layer_input"]:
        yield "per_layer_input_gate.weight", (own, h)
        yield "per_layer_projection.weight", (h, own)
        yield "post_per_layer_input_norm.weight", (h,)
    if config["enable_moe_block"]:
        experts, ffn = config["num_experts"], config["moe_intermediate_size"]
        for norm in ("pre_feedforward_layernorm_2", "post_feedforward_layernorm_1", "post_feedforward_layernorm_2"):
            yield f"{norm}.weight", (h,)
        yield "router.proj.weight", (experts, h)
        yield "router.scale", (h,)
        yield "router.per_expert_scale", (experts,)
        yield "experts.gate_up_proj", (experts, 2 * ffn, h)
        yield "experts.down_proj", (experts, h, ffn)


_LAYERS = {"gpt_oss": _gpt_oss, "lfm2": _lfm2, "lfm2_moe": _lfm2, "granitemoehybrid": _granite}


def mxfp4(tensors: Mapping[str, Any], seed: int = 0) -> dict[str, Any]:
    """gpt-oss's tensors with random blocks of 4-bit floats in place of the experts' matrices."""
    draw, found = np.random.default_rng(seed), dict[str, Any]()
    for name, values in tensors.items():
        if not name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            found[name] = values
            continue
        experts, columns, rows = values.shape
        blocks = draw.integers(0, 256, (experts, rows, columns // 32, 16), np.uint8)
        scales = draw.integers(121, 125, (experts, rows, columns // 32), np.uint8)
        for end, data in (("blocks", blocks), ("scales", scales)):
            found[f"{name}_{end}"] = ("U8", data.shape, data.tobytes())
    return found


def without_mxfp4(tensors: Mapping[str, Any]) -> dict[str, Any]:
    """The same with the numbers that the blocks stand for."""
    levels = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
    levels = np.concatenate([levels, -levels])
    found = {name: values for name, values in tensors.items() if not name.endswith(("_blocks", "_scales"))}
    for name in [name for name in tensors if name.endswith("_blocks")]:
        shapes = (tensors[name], tensors[name.replace("_blocks", "_scales")])
        blocks, scales = (np.frombuffer(data, np.uint8).reshape(shape) for _, shape, data in shapes)
        codes = np.stack([blocks & 15, blocks >> 4], -1).reshape(*scales.shape, 32)
        values = np.ldexp(levels[codes], scales[..., None].astype(np.int32) - 127)
        values = values.reshape(*scales.shape[:2], -1).transpose(0, 2, 1)
        found[name.removesuffix("_blocks")] = np.ascontiguousarray(values, np.float32)
    return found


def gemma4_assistant(config: Mapping[str, Any]) -> tuple[Json, Shapes]:
    """The config.json of an assistant of the target with this one, and its tensors."""
    text = {
        **config,
        "hidden_size": 32,
        "num_hidden_layers": 3,
        "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
        "per_layer_config": {"2": config["per_layer_config"]["2"]},
        "num_kv_shared_layers": 3,
        "hidden_size_per_layer_input": 0,
        "vocab_size_per_layer_input": 0,
        "use_double_wide_mlp": False,
        "enable_moe_block": False,
        "final_logit_softcapping": None,
    }
    outer = {
        "architectures": ["Gemma4AssistantForCausalLM"],
        "model_type": "gemma4_assistant",
        "backbone_hidden_size": config["hidden_size"],
        "text_config": text,
        "tie_word_embeddings": True,
    }
    return outer, _assistant(text, config["hidden_size"])


def _assistant(config: Mapping[str, Any], backbone: int) -> Shapes:
    yield from shapes(config)
    yield "pre_projection.weight", (config["hidden_size"], 2 * backbone)
    yield "post_projection.weight", (backbone, config["hidden_size"])
