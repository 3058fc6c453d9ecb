"""The model that is trained: a checkpoint grown and given the copying circuit, or a new one of a given shape."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from .circuit import LAYERS, Alias, Heads, install
from .gguf_file import read_gguf
from .growing import Weights, grown_config, widened, with_layers
from .layout import Layout

_SEED, _DRAFT_SEED = 0, 1
GROWN_GAIN, NEW_GAIN = 42.0, 1.7  # about 8 on the copied token's logit, in both
_STANDARD_DEVIATION = 0.02


@dataclass(frozen=True)
class Shape:
    """A new model before the circuit is added: `width` without the circuit's dimensions, `layers` without its own."""

    width: int = 512
    layers: int = 5
    ffn: int = 1536
    heads: int = 8
    kv_heads: int = 4


#: Draft models: `draft`, a tenth of the grown target; `draft-large`, 24 million parameters, for devices on which a
#: guess of theirs takes no longer.
DRAFTS = {
    "draft": Shape(width=256, layers=2, ffn=768, heads=4, kv_heads=2),
    "draft-large": Shape(width=448, layers=6, ffn=2048, heads=8, kv_heads=4),
}


def config_of(shape: Shape, vocabulary: int) -> dict[str, Any]:
    """config.json of a new Llama."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": vocabulary,
        "hidden_size": shape.width,
        "intermediate_size": shape.ffn,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": 64,
        "hidden_act": "silu",
        "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-5,
        "rope_theta": 100000.0,
        "tie_word_embeddings": True,
        "bos_token_id": 0,
        "eos_token_id": 2,
        "pad_token_id": 0,
    }


def new_weights(config: dict[str, Any], generator: torch.Generator) -> Weights:
    """Random weights of that config: normal, output projections smaller the more layers there are."""
    from transformers import LlamaConfig, LlamaForCausalLM  # noqa: PLC0415

    model = LlamaForCausalLM(LlamaConfig(**config))
    deep = _STANDARD_DEVIATION / (2 * config["num_hidden_layers"]) ** 0.5
    made: Weights = {}
    for name, tensor in model.state_dict().items():
        output = name.endswith(("o_proj.weight", "down_proj.weight"))
        noise = torch.randn(tensor.shape, generator=generator) * (deep if output else _STANDARD_DEVIATION)
        made[name] = torch.ones_like(tensor) if tensor.ndim == 1 else noise
    made.pop("lm_head.weight", None)
    return made


def read(folder: Path) -> tuple[dict[str, Any], Weights]:
    """config.json and the weights of a checkpoint, or of a GGUF file."""
    if folder.is_file():
        return read_gguf(folder)
    return json.loads((folder / "config.json").read_text()), load_file(folder / "model.safetensors")


def model_of(config: dict[str, Any], weights: Weights) -> Any:
    """The model that `read` read, as a transformers module."""
    from transformers import LlamaConfig, LlamaForCausalLM  # noqa: PLC0415

    model = LlamaForCausalLM(LlamaConfig(**config))
    model.load_state_dict(weights, strict=not config["tie_word_embeddings"])
    return model


def with_circuit(config: dict[str, Any], weights: Weights, alias: Alias, above: int, gain: float = GROWN_GAIN) -> Any:
    """The grown model as a transformers module: the circuit's layers below, `above` silent ones on top."""
    from transformers import LlamaConfig, LlamaForCausalLM  # noqa: PLC0415

    generator = torch.Generator().manual_seed(_SEED)
    layout = Layout(config["hidden_size"])
    heads = Heads(
        config["num_attention_heads"], config["num_key_value_heads"], config["head_dim"], config["rope_theta"]
    )
    grown = with_layers(widened(weights, layout.width), LAYERS, above, generator)
    install(grown, layout, heads, alias, gain, generator)
    model = LlamaForCausalLM(LlamaConfig(**grown_config(config, layout.width, LAYERS + above)))
    model.load_state_dict(grown, strict=True)
    return model


def new_draft(vocabulary: int, shape: Shape = DRAFTS["draft"]) -> Any:
    """A draft model with random weights, as a transformers module."""
    from transformers import LlamaConfig, LlamaForCausalLM  # noqa: PLC0415

    config = config_of(shape, vocabulary)
    model = LlamaForCausalLM(LlamaConfig(**config))
    weights = new_weights(config, torch.Generator().manual_seed(_DRAFT_SEED))
    model.load_state_dict(weights, strict=False)  # the output matrix is the embedding
    return model
