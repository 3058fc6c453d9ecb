"""A model in training as a checkpoint that `edgespec convert` reads."""

from __future__ import annotations

import json
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
#: Its tasks have one right answer each, so it is greedy unless it is asked otherwise. 0 ends a text, 2 a turn.
_GENERATION = {"bos_token_id": 0, "eos_token_id": [2, 0], "pad_token_id": 0, "do_sample": False}


def save_checkpoint(model: Any, kit: Path, output: Path) -> None:
    """Write weights (bfloat16), config, the kit's tokenizer and a card into the folder `output`, which is replaced."""
    need = 2 * sum(each.numel() for each in model.parameters())
    kept = {name: tensor.to("cpu", torch.bfloat16) for name, tensor in model.state_dict().items()}
    with atomic_folder(output, need, replace=True) as folder:
        model.config.dtype = torch.bfloat16
        model.save_pretrained(folder, state_dict=kept)
        copy_tokenizer(kit, folder)
        (folder / "generation_config.json").write_text(json.dumps(_GENERATION, indent=2), "utf-8")
        (folder / "README.md").write_text(_CARD.format(name=output.name), "utf-8")
