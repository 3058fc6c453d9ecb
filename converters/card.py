"""Metadata of a checkpoint: name, licence, chat templates, sampling defaults."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from edgespec.converters.checkpoint import Checkpoint, read_text
from edgespec.errors import ConversionError
from edgespec.storage.files import is_text


@dataclass(frozen=True, slots=True)
class About:
    """Name and licence; empty strings where the checkpoint does not give them."""

    name: str
    licence: str
    licence_name: str
    licence_link: str


def read(checkpoint: Checkpoint) -> About:
    """From the front matter of the model card, README.md; the folder's name where that gives none."""
    fields = _front_matter(checkpoint.text("README.md") or "")
    return About(
        fields.get("model_name") or checkpoint.folder.resolve().name,
        fields.get("license", ""),
        fields.get("license_name", ""),
        fields.get("license_link", ""),
    )


def _front_matter(text: str) -> dict[str, str]:
    """The plain `key: value` lines between the leading dashes. No nested values are needed, so no YAML parser."""
    found = re.match(r"---\s*\n(.*?)\n---\s*(\n|$)", text, re.DOTALL)
    lines = found.group(1).splitlines() if found else []
    pairs = (re.fullmatch(r"([A-Za-z_]+):\s+(.+?)\s*", line) for line in lines)
    return {pair[1]: pair[2].strip("\"'") for pair in pairs if pair}


def templates(checkpoint: Checkpoint) -> dict[str, str]:
    """Chat templates by name, the main one as "default"; empty where the checkpoint has none.

    The files that newer versions of transformers write take precedence over those in tokenizer_config.json.
    """
    found = _config_templates(checkpoint)
    folder = checkpoint.folder / "additional_chat_templates"
    for path in sorted(folder.glob("*.jinja")):
        found[path.stem] = read_text(path) or ""
    main = checkpoint.text("chat_template.jinja")
    if main:
        found["default"] = main
    if strange := [name for name, template in found.items() if not is_text(name) or not is_text(template)]:
        raise ConversionError(
            f"{checkpoint.folder / 'tokenizer_config.json'}: the chat template {strange[0]!a:.80} is not text; fetch "
            "the file again"
        )
    return {re.sub(r"[^A-Za-z0-9]", "_", name): text for name, text in found.items() if text}


def _config_templates(checkpoint: Checkpoint) -> dict[str, str]:
    given = (checkpoint.json("tokenizer_config.json") or {}).get("chat_template")
    if given is None or isinstance(given, str):
        return {"default": given} if given else {}
    try:
        return {str(choice["name"]): str(choice["template"]) for choice in given}
    except (TypeError, KeyError) as error:
        raise ConversionError(
            f"{checkpoint.folder / 'tokenizer_config.json'}: chat_template is neither a text nor a list of "
            "named templates; fetch the file again"
        ) from error


_SAMPLING = {  # the name in generation_config.json: llama.cpp's name
    "temperature": "temp",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "repetition_penalty": "penalty_repeat",
}


def sampling(checkpoint: Checkpoint) -> dict[str, Any]:
    """The sampling defaults under llama.cpp's names. `do_sample: false` is temperature 0, whatever else is given."""
    given = checkpoint.generation
    found = {word: given[key] for key, word in _SAMPLING.items() if _is_number(given.get(key))}
    if "top_k" in found:
        found["top_k"] = int(found["top_k"])  # an int32 in the file
    if given.get("do_sample") is False:
        found["temp"] = 0.0
    return found


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e9
