"""Checkpoints that answer given prompts with given texts: the head of a random one is solved for them.

make(folder, "qwen35", markers, template, end)
teach(folder, gguf, [(prompt's tokens, text), ...])
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from edgespec import Device, Runtime, load
from edgespec.converters import convert
from edgespec.text.template import Message

from . import checkpoints, family_checkpoints
from .reference import read_tensors

_HEAD = "lm_head.weight"
_HIGH = 20.0  # the logit of the right token; all others have 0


def make(folder: Path, kind: str, markers: Mapping[str, bool], template: str, end: str, **changes: Any) -> Path:
    """A random checkpoint with a chat template and further tokens.

    Args:
        markers: the texts of the further tokens, and whether each is special.
        end: the token that ends an answer, one of the markers or of the tokenizer's own.
    """
    folder.mkdir(parents=True)
    first = checkpoints.write_tokenizer(folder, family_checkpoints.TOKENIZERS[kind])
    words = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    known = {entry["content"] for entry in words["added_tokens"]}
    added = [text for text in markers if text not in known]
    size = -(-(first + len(added)) // 8) * 8
    family_checkpoints.make(folder, kind, vocab_size=size, tie_word_embeddings=False, **changes)
    settings = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    for token, text in enumerate(added, first):
        flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
        entry = {"content": text, "special": markers[text], **flags}
        words["added_tokens"].append({"id": token, **entry})
        settings["added_tokens_decoder"][str(token)] = entry
        if kind.startswith("gemma"):
            words["model"]["vocab"][text] = token
    (folder / "tokenizer.json").write_text(json.dumps(words), encoding="utf-8")
    settings |= {"chat_template": template, "eos_token": end}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    described = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    ends = Tokenizer.from_file(str(folder / "tokenizer.json")).token_to_id(end)
    (folder / "config.json").write_text(json.dumps(described | {"eos_token_id": ends}), encoding="utf-8")
    return folder


def teach(
    folder: Path,
    gguf: Path,
    messages: Sequence[Message],
    answers: Mapping[str, str],
    uncapped: Callable[[Any], Any] = lambda logits: logits,
) -> None:
    """Write the GGUF of the checkpoint with another head: the answer to `messages` is the text for each `think`.

    Args:
        uncapped: the inverse of what the model does to its logits.
    """
    tensors = read_tensors(folder)
    to_hidden = np.linalg.pinv(tensors[_HEAD].astype(np.float64))
    rows: list[Any] = []
    wanted: list[int] = []
    _convert(folder, gguf)
    with opened(gguf) as runtime:
        texts = {tuple(runtime.prompt(messages, think)): text for think, text in answers.items()}
        for prompt, text in texts.items():
            tokens = runtime.vocabulary.tokenize(text, special=True)
            runtime.session.rollback(0)
            runtime.session.prefill(prompt[:-1])
            logits = [runtime.session.decode([token])[0].copy() for token in (prompt[-1], *tokens[:-1])]
            rows += [to_hidden @ uncapped(row.astype(np.float64)) for row in logits]
            wanted += tokens
    assert len(rows) <= len(to_hidden), "as many tokens as the hidden size at most"
    goal = np.zeros((len(rows), len(tensors[_HEAD])))
    goal[np.arange(len(rows)), wanted] = _HIGH
    head = np.linalg.lstsq(np.array(rows), goal, rcond=None)[0].T
    checkpoints.write_safetensors(folder / "model.safetensors", {**tensors, _HEAD: head.astype(np.float32)})
    _convert(folder, gguf)


def opened(gguf: Path) -> Runtime:
    return load(gguf, device=Device(context=512, threads=1))


def _convert(folder: Path, gguf: Path) -> None:
    for _ in convert(folder, gguf, quantization="f32", force=True):
        pass
