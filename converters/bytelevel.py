"""Byte-level BPE: GPT-2, Llama 3, Qwen2, SmolLM and similar ones, from tokenizer.json.

The file has a regular expression that splits text before BPE, but llama.cpp only has a list of named ones
built in. The name is derived from how the original splits four short texts, not from a file name or a hash, and
compared later.
"""

from __future__ import annotations

import unicodedata
from dataclasses import replace
from functools import cache
from itertools import pairwise
from typing import Any

from edgespec.converters.checkpoint import Checkpoint, Json
from edgespec.converters.vocabulary import (
    CONTROL,
    NORMAL,
    USER_DEFINED,
    GgufVocabulary,
    SpecialTokens,
    TokenizerSpec,
    TokenizersReference,
    TokenList,
    added_tokens,
    special_texts,
    steps,
)
from edgespec.errors import ConversionError

# llama.cpp's names, one for each way of cutting text that a Llama graph may have been trained with. Two that
# differ only in ignoring merges follow each other: which one it is shows in the tokens.
_CUTS = (
    "gpt-2", "smollm", "llama-bpe", "smaug-bpe", "qwen2", "tekken", "gpt-4o", "granite-embed-multi-97m", "qwen35",
    "minicpm5", "deepseek-llm", "deepseek-coder", "deepseek-v3", "falcon", "seed-coder", "bailingmoe", "ufakzeka",
    "poro-chat", "viking", "default",
)  # fmt: skip
# (digits taken together, a tab joins the word, a capital 'S is a contraction, a capital begins a word)
# -> the likeliest names; of two, which differ in ignoring merges, the second does
_LIKELY = {
    (4, False, False, False): ("gpt-2",),
    (1, False, False, False): ("smollm",),
    (3, True, True, False): ("smaug-bpe", "llama-bpe"),
    (1, True, True, False): ("qwen2", "qwen35"),  # the second knows combining marks
    (1, True, True, True): ("tekken",),
    (3, True, False, True): ("gpt-4o", "granite-embed-multi-97m"),  # here, too
}
_NORMALIZERS = {"NFC"}  # what can be done to the text beforehand
_NFC = ("the original tokenizer brings text into Unicode's form NFC, which llama.cpp does not: do so beforehand",)


def _has_marks(text: str) -> bool:
    return any(unicodedata.category(character).startswith("M") for character in text)


def _mixes_capitals(text: str) -> bool:
    return any(left.isupper() and not left.isascii() and "A" <= right <= "Z" for left, right in pairwise(text))


_OTHER_TOKENS = "llama.cpp splits words {} differently from the original: they have other tokens"
_MARKS = (_has_marks, _OTHER_TOKENS.format("with combining marks, as Hindi and Thai have them,"))
_CAPITALS = (_mixes_capitals, _OTHER_TOKENS.format("in capitals of which some are beyond A to Z, such as FÜR,"))
# What llama.cpp's regular expressions get wrong: they know no case beyond a to z, and not all know marks.
_LIMITS = {(1, True, True, True): (_MARKS, _CAPITALS), (3, True, False, True): (_CAPITALS,)}


def read(checkpoint: Checkpoint, description: Json, size: int) -> TokenizerSpec:
    """The candidates by tokenizer.json. ConversionError for features that llama.cpp lacks."""
    path = checkpoint.folder / "tokenizer.json"
    for step in steps(description.get("normalizer")):
        if str(step.get("type")) not in _NORMALIZERS:
            raise ConversionError(
                f"{path}: the normalizer {step.get('type')} is not supported in byte-level BPE; only NFC is"
            )
    reference = _Reference(checkpoint)
    special = SpecialTokens(checkpoint, reference.tokenizer.token_to_id, size)
    tokens, types = _tokens(checkpoint, description, size)
    ids = special.ids()
    signature = _signature(reference.tokenizer)
    likeliest, limits = _LIKELY.get(signature, ()), _LIMITS.get(signature, ())
    if description["model"].get("ignore_merges"):
        likeliest = likeliest[::-1]
    first = GgufVocabulary(
        model="gpt2",
        pre="",
        tokens=tokens,
        types=types,
        ids=ids,
        add_bos=special.adds("bos", reference.adds(ids.get("bos"), 0)),
        add_eos=special.adds("eos", reference.adds(ids.get("eos"), -1)),
        merges=_merges(description, path),
    )
    return TokenizerSpec(
        what="byte-level BPE",
        candidates=[replace(first, pre=name) for name in dict.fromkeys((*likeliest, *_CUTS))],
        reference=reference,
        ends=special.ends(),
        pieces=[text for token, kind in zip(tokens, types, strict=True) if kind == NORMAL and (text := _plain(token))],
        specials=special_texts(added_tokens(checkpoint, description, size)),
        notes=(*(_NFC if steps(description.get("normalizer")) else ()), *(note for _, note in limits)),
        beyond=lambda text: any(beyond(text) for beyond, _ in limits),
    )


class _Reference(TokenizersReference):
    def normalize(self, text: str) -> str:
        normalizer = self.tokenizer.normalizer
        return text if normalizer is None else str(normalizer.normalize_str(text))


def _signature(tokenizer: Any) -> tuple[int, bool, bool, bool]:
    def cut(text: str) -> list[tuple[int, int]]:
        return [span for _, span in tokenizer.pre_tokenizer.pre_tokenize_str(text)]

    return cut("1234")[0][1], len(cut("\tx")) == 1, (1, 3) in cut("x'S"), len(cut("xS")) == 2


def _tokens(checkpoint: Checkpoint, description: Json, size: int) -> tuple[list[str], list[int]]:
    found = TokenList(checkpoint, size)
    vocabulary = description["model"].get("vocab")
    if not isinstance(vocabulary, dict):
        raise ConversionError(f"{checkpoint.folder / 'tokenizer.json'} has no vocabulary; fetch it again")
    for text, token in vocabulary.items():
        found.put(token, text, NORMAL)
    for entry in added_tokens(checkpoint, description, size):
        found.put(entry["id"], entry["content"], CONTROL if entry.get("special") else USER_DEFINED)
    return found.lists()


def _merges(description: Json, path: Any) -> list[str]:
    """Each merge as its halves with a space between; newer files hold pairs instead of such texts."""
    merges = []
    for merge in description["model"].get("merges") or []:
        halves = merge if isinstance(merge, list) else str(merge).split(" ")
        if len(halves) != 2 or any(" " in half for half in halves):
            raise ConversionError(f"{path}: the merge {merge!r} is not a pair of byte-level tokens; fetch it again")
        merges.append(" ".join(halves))
    return merges


@cache
def characters() -> dict[str, int]:
    """The byte behind each character of byte-level BPE: printable ones stay, the rest follow U+0100."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + i): byte for i, byte in enumerate(others)}


def _plain(token: str) -> str:
    """The text of a byte-level token; empty where its bytes are no text by themselves."""
    table = characters()
    try:
        return bytes(table[character] for character in token).decode()
    except (KeyError, UnicodeDecodeError):
        return ""
