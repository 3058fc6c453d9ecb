"""Drafts made of the target's own layers (as in Minitron, Muralidharan et al. 2024, arXiv 2407.14679)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import torch

from .growing import Weights
from .layout import Layout

_LAYER = re.compile(r"model\.layers\.(\d+)\.(.*)")
_WRITERS = ("o_proj.weight", "down_proj.weight")


def pruned(config: dict[str, Any], weights: Weights, layers: Sequence[int]) -> tuple[dict[str, Any], Weights]:
    """The layers of these numbers, without the dimensions of the copying circuit, which training would upset.

    RMSNorm divides by a mean over fewer numbers then, of which almost the same sum is left: the weights of norms grow
    by the root of the ratio of the widths.
    """
    base = Layout.of(config["hidden_size"]).base
    ratio = config["hidden_size"] / base
    kept: Weights = {}
    for name, tensor in weights.items():
        place = _LAYER.match(name)
        if place is None:
            kept[name] = _narrowed(name, tensor, base, ratio)
        elif int(place[1]) in layers:
            to = f"model.layers.{layers.index(int(place[1]))}.{place[2]}"
            kept[to] = _narrowed(name, tensor, base, ratio)
    epsilon = config["rms_norm_eps"] * ratio
    return {**config, "hidden_size": base, "num_hidden_layers": len(layers), "rms_norm_eps": epsilon}, kept


def _narrowed(name: str, tensor: torch.Tensor, base: int, ratio: float) -> torch.Tensor:
    """What of a tensor is of the residual stream's first `base` numbers."""
    if name.endswith(("layernorm.weight", "norm.weight")):
        return tensor[:base] * ratio**0.5
    return (tensor[:base] if name.endswith(_WRITERS) else tensor[:, :base]).clone()
