"""A Llama in GGUF as config.json and a state dict: the old demo target is shipped in this format only."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import torch
from gguf.quants import dequantize

from edgespec.converters import families

from .growing import Weights

_WHOLE = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}


def read_gguf(path: Path) -> tuple[dict[str, Any], Weights]:
    """Config and weights, float32, of a Llama with untied or tied embeddings."""
    reader = gguf.GGUFReader(path)

    def field(key: str) -> Any:
        return reader.fields[f"llama.{key}"].contents()

    heads, groups = int(field("attention.head_count")), int(field("attention.head_count_kv"))
    weights: Weights = {}
    for tensor in reader.tensors:
        values = torch.from_numpy(dequantize(tensor.data, tensor.tensor_type).astype("float32").copy())
        kind = tensor.name.split(".")[-2]
        if kind in ("attn_q", "attn_k"):
            values = _halves(values, heads if kind == "attn_q" else groups)
        weights[_named(tensor.name)] = values
    embedding = weights["model.embed_tokens.weight"]
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": embedding.shape[0],
        "hidden_size": embedding.shape[1],
        "intermediate_size": int(field("feed_forward_length")),
        "num_hidden_layers": int(field("block_count")),
        "num_attention_heads": heads,
        "num_key_value_heads": groups,
        "head_dim": int(field("attention.key_length")),
        "hidden_act": "silu",
        "max_position_embeddings": int(field("context_length")),
        "rms_norm_eps": float(field("attention.layer_norm_rms_epsilon")),
        "rope_theta": float(field("rope.freq_base")),
        "tie_word_embeddings": "lm_head.weight" not in weights,
        "bos_token_id": 0,
        "eos_token_id": 2,
        "pad_token_id": 0,
    }
    return config, weights


def _named(name: str) -> str:
    """The name in a state dict: "blk.3.attn_q.weight" is "model.layers.3.self_attn.q_proj.weight"."""
    parts = name.split(".")
    if parts[0] == "blk":
        return f"model.layers.{parts[1]}.{families._LLAMA[parts[2]]}.weight"
    return f"{_WHOLE[parts[0]]}.weight"


def _halves(values: torch.Tensor, heads: int) -> torch.Tensor:
    """Rows of heads in the order of transformers, which rotates halves; in GGUF neighbours are rotated together."""
    rows, columns = values.shape
    return values.reshape(heads, rows // heads // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)
