"""Tiny GGUF models with a recurrent state, of random weights: one of each architecture that edgespec rolls back."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np

U32, F32, TEXT, TRUTH, ARRAY = (gguf.GGUFValueType[name] for name in ("UINT32", "FLOAT32", "STRING", "BOOL", "ARRAY"))
Q8_0 = gguf.GGMLQuantizationType.Q8_0
Fields = dict[str, tuple[gguf.GGUFValueType, Any]]
Shapes = dict[str, tuple[int, ...]]
Array = np.ndarray[Any, Any]

TOKENS = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "\u2581", *"abcdefghij"]
LAYERS, WIDTH, HEADS, KV_HEADS, HEAD, INNER = 4, 64, 4, 2, 16, 96
STATE, GROUPS, KERNEL = 16, 2, 4
#: A chat template that drops the thinking of earlier answers, so that the next prompt differs near the last one's end.
TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content.split('#')[-1] }}\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)

_TOKENIZER: Fields = {
    "tokenizer.ggml.model": (TEXT, "llama"),
    "tokenizer.ggml.tokens": (ARRAY, TOKENS),
    "tokenizer.ggml.scores": (ARRAY, [-float(n) for n in range(len(TOKENS))]),
    "tokenizer.ggml.token_type": (ARRAY, [2, 3, 3, *[6] * 256, *[1] * 11]),
    "tokenizer.chat_template": (TEXT, TEMPLATE),
}
_COMMON: Fields = {
    "context_length": (U32, 4096),
    "embedding_length": (U32, WIDTH),
    "block_count": (U32, LAYERS),
    "attention.layer_norm_rms_epsilon": (F32, 1e-5),
}


def write(path: Path, architecture: str, *, seed: int = 0, **fields: Any) -> Path:
    """A model of `architecture`, one of `ARCHITECTURES`, at `path`.

    Args:
        fields: keys of the architecture, with "_" for ".", that replace its own; None leaves one out.
    """
    return write_model(path, architecture, ARCHITECTURES[architecture](), seed=seed, **fields)


def write_model(path: Path, architecture: str, model: tuple[Fields, Shapes], *, seed: int = 0, **fields: Any) -> Path:
    """A model of these keys and tensors, with the embeddings and the tokens of all, at `path`; `fields` as above."""
    own, shapes = model
    given = {key: (kind, fields.get(key.replace(".", "_"), value)) for key, (kind, value) in {**_COMMON, **own}.items()}
    return write_file(path, architecture, given, drawn({"token_embd.weight": (len(TOKENS), WIDTH), **shapes}, seed))


def write_file(path: Path, architecture: str, fields: Fields, tensors: Mapping[str, Array]) -> Path:
    """A model at `path`; fields that are None are left out, tensors of bytes are Q8_0."""
    writer = gguf.GGUFWriter(path, architecture)
    for key, (kind, value) in {**_COMMON, **fields}.items():
        if value is not None:
            writer.add_key_value(f"{architecture}.{key}", value, kind)
    writer.add_key_value("general.name", f"tiny {architecture}", TEXT)
    for key, (kind, value) in _TOKENIZER.items():
        writer.add_key_value(key, value, kind)
    for name, values in tensors.items():
        writer.add_tensor(name, values, raw_dtype=Q8_0 if values.dtype == np.uint8 else None)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def drawn(shapes: Shapes, seed: int = 0) -> dict[str, Array]:
    """Random weights."""
    return {name: _values(name, shape, seed) for name, shape in shapes.items()}


def _values(name: str, shape: tuple[int, ...], seed: int) -> Array:
    """Random weights of a tensor; states decay, and norms scale by about 1."""
    draw = np.random.default_rng([seed, zlib.crc32(name.encode())])
    if name.endswith("ssm_a"):
        values = -np.exp(draw.uniform(-1, 1, shape))
    elif "norm" in name:
        values = draw.uniform(0.5, 1.5, shape)
    elif len(shape) == 1 or name.endswith("ssm_d"):
        values = draw.normal(0, 0.3, shape)
    else:
        values = draw.normal(0, shape[-1] ** -0.5, shape)
    return values.astype(np.float32)


def _attention(layer: int, heads: int = HEADS, *, gated: bool = False, normed: bool = False) -> Shapes:
    shapes: Shapes = {
        "attn_q": ((2 if gated else 1) * heads * HEAD, WIDTH),
        "attn_k": (KV_HEADS * HEAD, WIDTH),
        "attn_v": (KV_HEADS * HEAD, WIDTH),
        "attn_output": (WIDTH, heads * HEAD),
    }
    if normed:
        shapes |= {"attn_q_norm": (HEAD,), "attn_k_norm": (HEAD,)}
    return _named(layer, shapes)


def _mlp(layer: int) -> Shapes:
    return _named(layer, {"ffn_gate": (INNER, WIDTH), "ffn_up": (INNER, WIDTH), "ffn_down": (WIDTH, INNER)})


def _named(layer: int, shapes: Shapes) -> Shapes:
    return {f"blk.{layer}.{name}.weight": shape for name, shape in shapes.items()}


_HEADS: Fields = {
    "attention.head_count": (U32, HEADS),
    "attention.key_length": (U32, HEAD),
    "attention.value_length": (U32, HEAD),
    "rope.dimension_count": (U32, HEAD),
}
_ENDS: Shapes = {"output_norm.weight": (WIDTH,)}


def _qwen35() -> tuple[Fields, Shapes]:
    fields, shapes = _delta_net()
    fields["feed_forward_length"] = (U32, INNER)
    for layer in range(LAYERS):
        shapes |= _mlp(layer)
    return fields, shapes


def _qwen35moe() -> tuple[Fields, Shapes]:
    fields, shapes = _delta_net()
    experts, inner = 6, 32
    fields |= {
        "expert_count": (U32, experts),
        "expert_used_count": (U32, 2),
        "expert_feed_forward_length": (U32, inner),
        "expert_shared_feed_forward_length": (U32, inner),
    }
    for layer in range(LAYERS):
        shapes |= _named(
            layer,
            {
                "ffn_gate_inp": (experts, WIDTH),
                "ffn_gate_exps": (experts, inner, WIDTH),
                "ffn_up_exps": (experts, inner, WIDTH),
                "ffn_down_exps": (experts, WIDTH, inner),
                "ffn_gate_inp_shexp": (WIDTH,),
                "ffn_gate_shexp": (inner, WIDTH),
                "ffn_up_shexp": (inner, WIDTH),
                "ffn_down_shexp": (WIDTH, inner),
            },
        )
    return fields, shapes


def _delta_net() -> tuple[Fields, Shapes]:
    """Qwen3.5 without its MLPs: three layers of gated delta net, one of attention."""
    values = 4  # heads
    inner = values * STATE
    fields: Fields = {
        **_HEADS,
        "attention.head_count_kv": (U32, KV_HEADS),
        "rope.dimension_sections": (ARRAY, [2, 2, 2, 0]),
        "ssm.conv_kernel": (U32, KERNEL),
        "ssm.state_size": (U32, STATE),
        "ssm.group_count": (U32, GROUPS),
        "ssm.time_step_rank": (U32, values),
        "ssm.inner_size": (U32, inner),
        "full_attention_interval": (U32, 4),
    }
    channels = inner + 2 * GROUPS * STATE
    shapes = dict(_ENDS)
    for layer in range(LAYERS):
        shapes |= _named(layer, {"attn_norm": (WIDTH,), "post_attention_norm": (WIDTH,)})
        if layer == LAYERS - 1:
            shapes |= _attention(layer, gated=True, normed=True)
            continue
        shapes |= _named(
            layer,
            {
                "attn_qkv": (channels, WIDTH),
                "attn_gate": (inner, WIDTH),
                "ssm_conv1d": (channels, KERNEL),
                "ssm_alpha": (values, WIDTH),
                "ssm_beta": (values, WIDTH),
                "ssm_norm": (STATE,),
                "ssm_out": (WIDTH, inner),
            },
        )
        shapes |= {f"blk.{layer}.ssm_dt.bias": (values,), f"blk.{layer}.ssm_a": (values,)}
    return fields, shapes


def _lfm2() -> tuple[Fields, Shapes]:
    kernel = 3
    fields: Fields = {
        **_HEADS,
        "attention.head_count_kv": (ARRAY, [0, 0, KV_HEADS, 0]),
        "feed_forward_length": (U32, INNER),
        "shortconv.l_cache": (U32, kernel),
        "vocab_size": (U32, len(TOKENS)),
    }
    shapes: Shapes = {"token_embd_norm.weight": (WIDTH,)}
    for layer in range(LAYERS):
        shapes |= _mlp(layer) | _named(layer, {"attn_norm": (WIDTH,), "ffn_norm": (WIDTH,)})
        if layer == 2:
            shapes |= _attention(layer, normed=True)
        else:
            convolution = {"conv": (WIDTH, kernel), "in_proj": (3 * WIDTH, WIDTH), "out_proj": (WIDTH, WIDTH)}
            shapes |= _named(layer, {f"shortconv.{name}": shape for name, shape in convolution.items()})
    return fields, shapes


_MAMBA_HEADS = 8
_MAMBA_INNER = 2 * WIDTH
_MAMBA: Fields = {
    "ssm.conv_kernel": (U32, KERNEL),
    "ssm.inner_size": (U32, _MAMBA_INNER),
    "ssm.state_size": (U32, STATE),
    "ssm.time_step_rank": (U32, _MAMBA_HEADS),
    "ssm.group_count": (U32, GROUPS),
}


def _mamba(layer: int) -> Shapes:
    channels = _MAMBA_INNER + 2 * GROUPS * STATE
    shapes = _named(
        layer,
        {
            "ssm_in": (_MAMBA_INNER + channels + _MAMBA_HEADS, WIDTH),
            "ssm_conv1d": (channels, KERNEL),
            "ssm_norm": (GROUPS, _MAMBA_INNER // GROUPS),
            "ssm_out": (WIDTH, _MAMBA_INNER),
        },
    )
    block = f"blk.{layer}"
    shapes |= {f"{block}.ssm_conv1d.bias": (channels,), f"{block}.ssm_dt.bias": (_MAMBA_HEADS,)}
    return shapes | {f"{block}.ssm_a": (_MAMBA_HEADS, 1), f"{block}.ssm_d": (_MAMBA_HEADS, 1)}


def _nemotron_h() -> tuple[Fields, Shapes]:
    fields: Fields = {
        **_HEADS,
        **_MAMBA,
        "attention.head_count_kv": (ARRAY, [0, 0, KV_HEADS, 0]),
        "attention.layer_norm_epsilon": (F32, 1e-5),
        "feed_forward_length": (ARRAY, [0, INNER, 0, 0]),
    }
    shapes = dict(_ENDS)
    for layer in range(LAYERS):
        shapes |= _named(layer, {"attn_norm": (WIDTH,)})
        if layer == 1:
            shapes |= _named(layer, {"ffn_up": (INNER, WIDTH), "ffn_down": (WIDTH, INNER)})
        else:
            shapes |= _attention(layer) if layer == 2 else _mamba(layer)
    return fields, shapes


def _granitehybrid() -> tuple[Fields, Shapes]:
    fields: Fields = {
        **_HEADS,
        **_MAMBA,
        "attention.head_count_kv": (ARRAY, [0, 0, KV_HEADS, 0]),
        "feed_forward_length": (U32, INNER),
        "rope.scaling.finetuned": (TRUTH, False),
        "embedding_scale": (F32, 1.5),
        "residual_scale": (F32, 0.8),
        "logit_scale": (F32, 2.0),
        "attention.scale": (F32, 0.25),
    }
    shapes = dict(_ENDS)
    for layer in range(LAYERS):
        shapes |= _mlp(layer) | _named(layer, {"attn_norm": (WIDTH,), "ffn_norm": (WIDTH,)})
        shapes |= _attention(layer) if layer == 2 else _mamba(layer)
    return fields, shapes


def _mamba2() -> tuple[Fields, Shapes]:
    shapes = dict(_ENDS)
    for layer in range(LAYERS):
        shapes |= _mamba(layer) | _named(layer, {"attn_norm": (WIDTH,)})
    return {**_MAMBA, "feed_forward_length": (U32, 0), "attention.head_count": (U32, 0)}, shapes


ARCHITECTURES: Mapping[str, Callable[[], tuple[Fields, Shapes]]] = {
    "qwen35": _qwen35,
    "qwen35moe": _qwen35moe,
    "lfm2": _lfm2,
    "nemotron_h": _nemotron_h,
    "granitehybrid": _granitehybrid,
    "mamba2": _mamba2,
}
