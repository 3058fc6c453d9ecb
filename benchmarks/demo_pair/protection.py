"""Keeps the copying circuit as it was set: training changes what reads it, not what it is.

The output head multiplies what the circuit writes by thousands (`models.GROWN_GAIN` squared), for its share of the
residual stream is small. A step of Adam changes all weights by about the same amount, so a few steps on these weights
raised the loss of a grown model from 4 to 89 nats, and the circuit did not come back.
"""

from __future__ import annotations

from typing import Any

import torch

from .circuit import LAYERS
from .layout import Layout

_WRITERS = ("o_proj.weight", "down_proj.weight")
_TABLES = ("embed_tokens.weight", "lm_head.weight")


def protect(model: Any, layout: Layout) -> None:
    """Let no gradient reach the attention of the circuit's layers, nor the circuit's dimensions where tables, norms of
    the output and other layers write to them."""
    for name, parameter in model.named_parameters():
        circuit = any(f"layers.{layer}." in name for layer in range(LAYERS))
        if circuit and ("self_attn" in name or "input_layernorm" in name):
            parameter.requires_grad_(False)
        elif name.endswith(_TABLES) or name == "model.norm.weight":
            _only(parameter, (..., slice(0, layout.base)))
        elif name.endswith(_WRITERS):
            _only(parameter, (slice(0, layout.base),))


def _only(parameter: torch.nn.Parameter, part: tuple[Any, ...]) -> None:
    """Gradients of a part only."""
    masks = {parameter.device: torch.zeros_like(parameter, requires_grad=False)}
    masks[parameter.device][part] = 1

    def masked(gradient: torch.Tensor) -> torch.Tensor:
        if gradient.device not in masks:
            masks[gradient.device] = next(iter(masks.values())).to(gradient.device)
        return gradient * masks[gradient.device]

    parameter.register_hook(masked)
