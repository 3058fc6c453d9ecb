"""A model in training as a checkpoint that `edgespec convert` reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from edgespec.converters.atomic_folder import atomic_folder

from .kit import copy_tokenizer


def save_checkpoint(model: Any, kit: Path, output: Path) -> None:
    """Write the weights (bfloat16), the config and the kit's tokenizer into the folder `output`, which is replaced."""
    need = 2 * sum(each.numel() for each in model.parameters())
    kept = {name: tensor.to("cpu", torch.bfloat16) for name, tensor in model.state_dict().items()}
    with atomic_folder(output, need, replace=True) as folder:
        model.config.dtype = torch.bfloat16
        model.save_pretrained(folder, state_dict=kept)
        copy_tokenizer(kit, folder)
