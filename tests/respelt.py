"""A checkpoint's model under another vocabulary, made on the spot: as a draft model of another family would be.

Each new token is an old one under another number, and keeps its rows of the embedding (which must be tied). With
fewer merges the same text takes more tokens, of a kind the model has seldom seen: so it is worse, but no fool.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from edgespec.converters import convert
from edgespec.converters.checkpoint import Checkpoint

from .checkpoints import Raw, write_safetensors

Json = dict[str, Any]

_SPACE = "▁"
_PRINTABLE = (*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100))
_OTHERS = [byte for byte in range(256) if byte not in _PRINTABLE]
#: The byte behind each character of byte-level BPE.
_BYTES = {chr(byte): byte for byte in _PRINTABLE} | {chr(0x100 + i): byte for i, byte in enumerate(_OTHERS)}


def respelt(source: Path, folder: Path, *, merges: int, kind: str = "bytes", seed: int = 0) -> Path:
    """The checkpoint `source`, a byte-level BPE's, with only its first `merges`, as a GGUF file in `folder`.

    `kind` is "bytes" for a byte-level BPE whose ids are shuffled, or "spaces" for a SentencePiece-style one.
    """
    folder.mkdir(parents=True)
    checkpoint = Checkpoint.open(source)
    description = checkpoint.json("tokenizer.json") or {}
    make = {"bytes": _byte_level, "spaces": _sentencepiece}[kind]
    rows = make(folder, description, description["model"]["merges"][:merges], seed)
    _write(folder / "tokenizer_config.json", checkpoint.json("tokenizer_config.json") or {})
    config = {key: value for key, value in checkpoint.config.items() if not key.endswith("_token_id")}
    _write(folder / "config.json", {**config, "vocab_size": len(rows)})
    write_safetensors(folder / "model.safetensors", _tensors(checkpoint, rows))
    output = folder / "model.gguf"
    for _ in convert(folder, output, quantization="f16"):
        pass
    return output


def _tensors(checkpoint: Checkpoint, rows: list[int]) -> Mapping[str, Raw]:
    tensors: dict[str, Raw] = {}
    for name, stored in checkpoint.tensors.items():
        values = np.concatenate(list(stored.blocks())).reshape(stored.shape)
        if name == "model.embed_tokens.weight":
            values = values[rows]
        tensors[name] = (stored.dtype, values.shape, values.tobytes())
    return tensors


def _byte_level(folder: Path, description: Json, merges: list[list[str]], seed: int) -> list[int]:
    old: Mapping[str, int] = description["model"]["vocab"]
    specials = [entry["content"] for entry in description["added_tokens"]]
    texts = [*_BYTES, *("".join(pair) for pair in merges), *specials]
    order = np.random.default_rng(seed).permutation(len(texts))
    texts = [texts[i] for i in order]
    new = {text: token for token, text in enumerate(texts)}
    _describe(folder, description, new, merges, lambda entry: {**entry, "id": new[entry["content"]]})
    return [old[text] for text in texts]


def _sentencepiece(folder: Path, description: Json, merges: list[list[str]], seed: int) -> list[int]:
    del seed
    old: Mapping[str, int] = description["model"]["vocab"]
    specials = [entry["content"] for entry in description["added_tokens"]]
    pairs = [pair for pair in merges if _plain("".join(pair)) and all(map(_plain, pair))]
    rows: dict[str, int] = {"<unk>": old[specials[0]]}
    rows |= {text: old[text] for text in specials}
    rows |= {f"<0x{byte:02X}>": old[character] for character, byte in _BYTES.items()}
    rows |= {_plain(character): old[character] for character in _BYTES if _plain(character)}
    rows |= {_plain("".join(pair)): old["".join(pair)] for pair in pairs}
    new = {text: token for token, text in enumerate(rows)}
    description = json.loads(json.dumps(description))
    description |= {"pre_tokenizer": None, "post_processor": None, "decoder": None}
    description["model"] |= {"byte_fallback": True, "unk_token": "<unk>", "fuse_unk": True}
    description["normalizer"] = {
        "type": "Sequence",
        "normalizers": [
            {"type": "Prepend", "prepend": _SPACE},
            {"type": "Replace", "pattern": {"String": " "}, "content": _SPACE},
        ],
    }
    spelt = [[_plain(half) for half in pair] for pair in pairs]
    _describe(folder, description, new, spelt, lambda entry: {**entry, "id": new[entry["content"]]})
    return list(rows.values())


def _describe(
    folder: Path, description: Json, new: Mapping[str, int], merges: list[list[str]], moved: Callable[[Json], Json]
) -> None:
    model = {**description["model"], "vocab": dict(new), "merges": merges}
    added = [moved(entry) for entry in description["added_tokens"]]
    _write(folder / "tokenizer.json", {**description, "model": model, "added_tokens": added})


def _plain(token: str) -> str:
    """A byte-level token as SentencePiece writes it; empty where its bytes are no text, or a newline's."""
    try:
        text = bytes(_BYTES[character] for character in token).decode()
    except UnicodeDecodeError:
        return ""
    return text.replace(" ", _SPACE) if text.isprintable() else ""


def _write(path: Path, value: Json) -> None:
    path.write_text(json.dumps(value), encoding="utf-8")
