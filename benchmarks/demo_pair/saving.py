"""A model in training as a checkpoint that `edgespec convert` reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from edgespec.converters.atomic_folder import atomic_folder

from .kit import copy_tokenizer

#: Name and licence, which a conversion takes over. The texts of the kit require that licence.
_CARD = """---
model_name: edgespec demo {name}
license: cc-by-sa-4.0
---
"""


def save_checkpoint(model: Any, kit: Path, output: Path) -> None:
    """Write the weights (bfloat16), the config, the kit's tokenizer and a card into the folder `output`, which is replaced."""
    need = 2 * sum(each.numel() for each in model.parameters())
    kept = {name: tensor.to("cpu", torch.bfloat16) for name, tensor in model.state_dict().items()}
    with atomic_folder(output, need, replace=True) as folder:
        model.config.dtype = torch.bfloat16
        model.save_pretrained(folder, state_dict=kept)
        copy_tokenizer(kit, folder)
        (folder / "README.md").write_text(_CARD.format(name=output.name), "utf-8")
