"""The files that travel beside a graph: tokenizer, templates, configs."""

from __future__ import annotations

import json

from edgespec.converters import card, vocabulary
from edgespec.converters.checkpoint import Checkpoint

_COPIED = ("config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json", "special_tokens_map.json", "added_tokens.json")


def read(checkpoint: Checkpoint, size: int) -> dict[str, bytes]:
    """The contents of the files by name."""
    claim = vocabulary.read(checkpoint, size)
    words = claim.candidates[0]
    found = {}
    for name in _COPIED:
        text = checkpoint.text(name)
        if text is not None:
            found[name] = text.encode()
    for name, template in card.templates(checkpoint).items():
        found["chat_template.jinja" if name == "default" else f"additional_chat_templates/{name}.jinja"] = template.encode()
    return found
