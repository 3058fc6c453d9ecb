"""A tokenizer.json for a SentencePiece model that has none.

SentencePiece merges the pair whose result has the best score; the `tokenizers` package merges in the order of a
list. So the list is all pairs that make a token, best result first. Where two pairs make the same token, shorter
and earlier halves come first, as transformers orders them (convert_slow_tokenizer.py); tokenizer_check.py
tests whether that was right.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from edgespec.converters.checkpoint import Json
from edgespec.converters.vocabulary import BYTE, CONTROL, NORMAL, UNKNOWN, USER_DEFINED, GgufVocabulary
from edgespec.extras import import_package

_SPACE = "\u2581"
_MODEL = {NORMAL, UNKNOWN, CONTROL, BYTE}  # types of tokens inside the model; others are only added to it


def tokenizer_json(words: GgufVocabulary) -> str:
    """`words`, a SentencePiece-style vocabulary with scores, as a tokenizer.json."""
    kinds = list(zip(words.tokens, words.types, strict=True))
    unknown = next((text for text, kind in kinds if kind == UNKNOWN), None)
    return json.dumps(
        {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": [
                _added(token, text, special=kind != USER_DEFINED)
                for token, (text, kind) in enumerate(kinds)
                if kind in {UNKNOWN, CONTROL, USER_DEFINED}
            ],
            "normalizer": _normalizer(bool(words.add_space_prefix)),
            "pre_tokenizer": None,
            "post_processor": _post_processor(words),
            "decoder": _decoder(bool(words.add_space_prefix)),
            "model": {
                "type": "BPE",
                "dropout": None,
                "unk_token": unknown,
                "continuing_subword_prefix": None,
                "end_of_word_suffix": None,
                "fuse_unk": True,
                "byte_fallback": True,
                "ignore_merges": False,
                "vocab": {text: token for token, (text, kind) in enumerate(kinds) if kind in _MODEL},
                "merges": _merges(words),
            },
        },
        ensure_ascii=False,
    )


@contextmanager
def open_tokenizer(words: GgufVocabulary) -> Iterator[FastTokenizer]:
    """The tokenizer that `words` make."""
    tokenizers = import_package("tokenizers", "making a tokenizer.json")
    yield FastTokenizer(tokenizers.Tokenizer.from_str(tokenizer_json(words)))


class FastTokenizer:
    """A tokenizer.json as the `tokenizers` package runs it, for tokenizer_check.py."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    def encode(self, text: str, special: bool = False) -> Sequence[int]:
        self._tokenizer.encode_special_tokens = not special
        found: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return found

    def control(self, _token: int) -> bool:
        """Always False: the package uses the types of the file."""
        return False


def _added(token: int, text: str, special: bool) -> Json:
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return {"id": token, "content": text, **flags, "special": special}


def _normalizer(prefix: bool) -> Json:
    first = [{"type": "Prepend", "prepend": _SPACE}] if prefix else []
    return {
        "type": "Sequence",
        "normalizers": [*first, {"type": "Replace", "pattern": {"String": " "}, "content": _SPACE}],
    }


def _decoder(prefix: bool) -> Json:
    steps = [
        {"type": "Replace", "pattern": {"String": _SPACE}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
        *([{"type": "Strip", "content": " ", "start": 1, "stop": 0}] if prefix else []),
    ]
    return {"type": "Sequence", "decoders": steps}


def _post_processor(words: GgufVocabulary) -> Json | None:
    """The template that adds bos and eos to a text, as far as the tokenizer adds them."""
    added = [name for name, adds in (("bos", words.add_bos), ("eos", words.add_eos)) if adds]
    if not added:
        return None

    def around(sequence: str, kind: int) -> list[Json]:
        texts = {name: {"SpecialToken": {"id": words.tokens[words.ids[name]], "type_id": kind}} for name in added}
        inner = {"Sequence": {"id": sequence, "type_id": kind}}
        return [part for part in (texts.get("bos"), inner, texts.get("eos")) if part]

    specials = {words.tokens[words.ids[name]]: words.ids[name] for name in added}
    return {
        "type": "TemplateProcessing",
        "single": around("A", 0),
        "pair": [*around("A", 0), *around("B", 1)],
        "special_tokens": {text: {"id": text, "ids": [token], "tokens": [text]} for text, token in specials.items()},
    }


def _merges(words: GgufVocabulary) -> list[list[str]]:
    scores = words.scores or []
    ranks = {text: i for i, (text, kind) in enumerate(zip(words.tokens, words.types, strict=True)) if kind == NORMAL}
    found = []
    for text, token in ranks.items():
        for cut in range(1, len(text)):
            left, right = text[:cut], text[cut:]
            if left in ranks and right in ranks:
                found.append((-scores[token], len(left), len(right), ranks[left], ranks[right], [left, right]))
    return [merge for *_, merge in sorted(found)]
