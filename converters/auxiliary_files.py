"""The small files beside a graph: tokenizer, templates, configs, licence.

They are the checkpoint's, completed by what it leaves implicit: the tokens that begin and end a text, and those that
are added to one.
"""

from __future__ import annotations

import json
from typing import Any

from edgespec.converters import card, tokenizer_check, tokenizer_json, vocabulary
from edgespec.converters.checkpoint import Checkpoint, read_bytes
from edgespec.converters.vocabulary import GgufVocabulary, TokenizerSpec

_TOKENIZER, _SETTINGS, _GENERATION = "tokenizer.json", "tokenizer_config.json", "generation_config.json"
_TEMPLATE, _TEMPLATES = "chat_template.jinja", "additional_chat_templates"
_COPIED = (
    "config.json", "special_tokens_map.json", "added_tokens.json", "tokenizer.model", "README.md",
    "LICENSE", "LICENSE.txt", "LICENSE.md", "NOTICE", "NOTICE.txt", "USE_POLICY.md",
)  # fmt: skip
NAMES = frozenset({_TOKENIZER, _SETTINGS, _GENERATION, _TEMPLATE, _TEMPLATES, *_COPIED})


def read(checkpoint: Checkpoint, size: int) -> dict[str, bytes]:
    """The files' contents by name; `size` is the vocabulary's.

    ConversionError for a tokenizer that is not supported, or that cannot be written as tokenizer.json.
    """
    spec = vocabulary.read(checkpoint, size)
    present = {name: read_bytes(checkpoint.folder / name) for name in (_TOKENIZER, *_COPIED)}
    found = {name: data for name, data in present.items() if data is not None}
    words = spec.candidates[0]
    if _TOKENIZER not in found:
        words = tokenizer_check.matching_candidate(spec, tokenizer_json.open_tokenizer, "the tokenizers package")
        found[_TOKENIZER] = tokenizer_json.tokenizer_json(words).encode()
    found[_SETTINGS] = _json(_settings(checkpoint, words))
    found[_GENERATION] = _json(_generation(checkpoint, spec))
    for name, template in card.templates(checkpoint).items():
        found[_TEMPLATE if name == "default" else f"{_TEMPLATES}/{name}.jinja"] = template.encode()
    return found


def _json(value: dict[str, Any]) -> bytes:
    # A lone surrogate, which UTF-8 cannot encode, is written as JSON's escape sequence.
    return json.dumps(value, indent=2, ensure_ascii=False).encode("utf-8", "backslashreplace") + b"\n"


def _settings(checkpoint: Checkpoint, words: GgufVocabulary) -> dict[str, Any]:
    """tokenizer_config.json, with explicit `add_bos_token` and `add_eos_token`."""
    found = dict(checkpoint.json(_SETTINGS) or {})
    found |= {"add_bos_token": words.add_bos, "add_eos_token": words.add_eos}
    named = {**(checkpoint.json("special_tokens_map.json") or {}), **found}
    for name in ("eos", *(["bos"] if words.add_bos else [])):
        if named.get(f"{name}_token") is None:
            found[f"{name}_token"] = words.tokens[words.ids[name]]
    return found


def _generation(checkpoint: Checkpoint, spec: TokenizerSpec) -> dict[str, Any]:
    return {**checkpoint.generation, "eos_token_id": list(spec.ends)}
