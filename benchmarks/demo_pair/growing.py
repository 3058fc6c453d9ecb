"""A larger Llama that says what a smaller one says: more dimensions, and layers that add nothing yet.

New dimensions are zero in every matrix that the old layers write with, and carry a norm weight of zero where they
read; norm weights are scaled, for the root mean square is taken over more numbers. New layers have a zero output
projection and a zero down projection (function-preserving growth: Chen et al. 2016, Net2Net, arXiv 1511.05641).
"""

from __future__ import annotations

import math
from typing import Any

import torch

Weights = dict[str, torch.Tensor]
_OUTPUTS = ("o_proj.weight", "down_proj.weight")


def widened(weights: Weights, width: int) -> Weights:
    """Every matrix and norm of a Llama's state dict in a residual stream of `width` dimensions."""
    base = weights["model.embed_tokens.weight"].shape[1]
    return {name: _widened(name, tensor.float(), base, width) for name, tensor in weights.items()}


def _widened(name: str, tensor: torch.Tensor, base: int, width: int) -> torch.Tensor:
    if tensor.ndim == 1:
        made = torch.zeros(width)
        made[:base] = tensor * math.sqrt(base / width)
    elif name.endswith(_OUTPUTS):
        made = torch.zeros(width, tensor.shape[1])
        made[:base] = tensor
    else:
        made = torch.zeros(tensor.shape[0], width)
        made[:, :base] = tensor
    return made


def with_layers(weights: Weights, below: int, above: int, generator: torch.Generator) -> Weights:
    """The layers shifted up by `below` new ones, and `above` new ones on top of them: none of the new ones adds
    anything."""
    own = 1 + max(int(name.split(".")[2]) for name in weights if name.startswith("model.layers."))
    made = {_shifted(name, below): tensor for name, tensor in weights.items()}
    pattern = {name: tensor for name, tensor in weights.items() if name.startswith("model.layers.0.")}
    for layer in [*range(below), *range(below + own, below + own + above)]:
        for name, tensor in pattern.items():
            made[name.replace(".layers.0.", f".layers.{layer}.")] = _silent(name, tensor, generator)
    return made


def _shifted(name: str, by: int) -> str:
    parts = name.split(".")
    if parts[1] == "layers":
        parts[2] = str(int(parts[2]) + by)
    return ".".join(parts)


def _silent(name: str, like: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    if like.ndim == 1:
        return torch.ones_like(like)
    if name.endswith(_OUTPUTS):
        return torch.zeros_like(like)
    return torch.randn(like.shape, generator=generator) * 0.02


def grown_config(config: dict[str, Any], width: int, layers: int) -> dict[str, Any]:
    """config.json of the grown model: a head of its own, for embedding and output read different dimensions."""
    return config | {
        "hidden_size": width,
        "num_hidden_layers": config["num_hidden_layers"] + layers,
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
    }
