"""The trained pair of the tests as Hugging Face checkpoints, made from its GGUF files, for conversions."""

from __future__ import annotations

import json
from pathlib import Path

import gguf
import numpy as np

from edgespec.types import Floats

from .checkpoints import Json, Raw, write_safetensors

_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_OUTSIDE = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight"}
_CONTROL = int(gguf.TokenType.CONTROL)


def checkpoint_of(file: Path, folder: Path) -> Path:
    """`folder`, with a checkpoint of the Llama with tied embeddings and a byte-level BPE in `file`, as float32."""
    reader = gguf.GGUFReader(file)
    values = {name: field.contents() for name, field in reader.fields.items()}
    folder.mkdir(parents=True)
    config = _config(values)
    _write(folder / "config.json", config)
    _write_tokenizer(folder, values)
    tensors: dict[str, Raw] = {}
    for tensor in reader.tensors:
        numbers = gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        if ".attn_q." in tensor.name or ".attn_k." in tensor.name:
            numbers = _halves(numbers, config["head_dim"])
        tensors[_name(tensor.name)] = ("F32", numbers.shape, numbers.tobytes())
    write_safetensors(folder / "model.safetensors", tensors)
    return folder


def _name(name: str) -> str:
    """The name in a checkpoint of the tensor `name` of a GGUF file."""
    if name in _OUTSIDE:
        return _OUTSIDE[name]
    _, layer, part, _ = name.split(".")
    return f"model.layers.{layer}.{_NAMES[part]}.weight"


def _halves(rows: Floats, head_dim: int) -> Floats:
    """Rows of query or key heads for a RoPE of two halves; GGUF files of Llama have them for one of neighbours."""
    return rows.reshape(-1, head_dim // 2, 2, rows.shape[-1]).swapaxes(1, 2).reshape(rows.shape)


def _config(values: Json) -> Json:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "vocab_size": values["llama.vocab_size"],
        "hidden_size": values["llama.embedding_length"],
        "intermediate_size": values["llama.feed_forward_length"],
        "num_hidden_layers": values["llama.block_count"],
        "num_attention_heads": values["llama.attention.head_count"],
        "num_key_value_heads": values["llama.attention.head_count_kv"],
        "head_dim": values["llama.attention.key_length"],
        "max_position_embeddings": values["llama.context_length"],
        "rms_norm_eps": values["llama.attention.layer_norm_rms_epsilon"],
        "rope_theta": values["llama.rope.freq_base"],
        "tie_word_embeddings": True,
        "bos_token_id": values["tokenizer.ggml.bos_token_id"],
        "eos_token_id": values["tokenizer.ggml.eos_token_id"],
    }


def _write_tokenizer(folder: Path, values: Json) -> None:
    texts, kinds = values["tokenizer.ggml.tokens"], values["tokenizer.ggml.token_type"]
    special = {"special": True, "normalized": False, "single_word": False, "lstrip": False, "rstrip": False}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    model = {
        "type": "BPE",
        "vocab": {text: token for token, text in enumerate(texts)},
        "merges": [merge.split(" ") for merge in values["tokenizer.ggml.merges"]],
        "byte_fallback": False,
        "fuse_unk": False,
        "ignore_merges": False,
    }
    added = [{"id": token, "content": texts[token], **special} for token, kind in enumerate(kinds) if kind == _CONTROL]
    _write(
        folder / "tokenizer.json",
        {
            "version": "1.0",
            "added_tokens": added,
            "normalizer": None,
            "pre_tokenizer": byte_level,
            "post_processor": None,
            "decoder": byte_level,
            "model": model,
        },
    )
    _write(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "add_bos_token": False,
            "bos_token": texts[values["tokenizer.ggml.bos_token_id"]],
            "eos_token": texts[values["tokenizer.ggml.eos_token_id"]],
            "chat_template": values["tokenizer.chat_template"],
        },
    )


def _write(path: Path, value: Json) -> None:
    path.write_text(json.dumps(value), encoding="utf-8")
