"""Byte-level BPE: GPT-2, Llama 3, Qwen2, SmolLM and their kin, from tokenizer.json.

How text is cut before BPE is a regular expression in the file, but llama.cpp only has a list of named ones
built in. The name is not taken from a file name or a hash of the file: it is guessed by how the original
cuts three small texts, and proven later.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from edgespec.converters.checkpoint import Checkpoint, Json
from edgespec.converters.vocabulary import (
    CONTROL,
    NORMAL,
    USER_DEFINED,
    Claim,
    Specials,
    TokenizersReference,
    TokenList,
    Vocabulary,
    added_tokens,
    steps,
)
from edgespec.errors import ConversionError

# llama.cpp's names, one for each way of cutting text that a Llama graph may have been trained with. Two that
# differ only in ignoring merges follow each other: which one it is shows in the tokens.
_CUTS = (
    "gpt-2", "smollm", "llama-bpe", "smaug-bpe", "qwen2", "tekken", "gpt-4o", "qwen35", "minicpm5",
    "deepseek-llm", "deepseek-coder", "deepseek-v3", "falcon", "seed-coder", "bailingmoe", "ufakzeka",
    "poro-chat", "viking", "default",
)  # fmt: skip
# (digits taken together, a tab joins the word, a capital 'S is a contraction) -> the likeliest names
_LIKELY = {
    (4, False, False): ("gpt-2",),
    (1, False, False): ("smollm",),
    (3, True, True): ("llama-bpe", "smaug-bpe"),
    (1, True, True): ("qwen2",),
    (1, True, False): ("tekken",),
}
_NORMALIZERS = {"NFC"}  # what can be done to the text beforehand
_NFC = ("the original tokenizer brings text into Unicode's form NFC, which llama.cpp does not: do so beforehand",)


def read(checkpoint: Checkpoint, description: Json, size: int) -> Claim:
    """What tokenizer.json claims. ConversionError for what llama.cpp cannot do, even on prepared text."""
    path = checkpoint.folder / "tokenizer.json"
    for step in steps(description.get("normalizer")):
        if step.get("type") not in _NORMALIZERS:
            raise ConversionError(
                f"{path}: the normalizer {step.get('type')} is not supported in byte-level BPE; only NFC is"
            )
    reference = _Reference(checkpoint)
    special = Specials(checkpoint, reference.tokenizer.token_to_id, size)
    tokens, types = _tokens(checkpoint, description, size)
    ids = special.ids()
    likeliest = _LIKELY.get(_signature(reference.tokenizer), ())
    first = Vocabulary(
        model="gpt2",
        pre="",
        tokens=tokens,
        types=types,
        ids=ids,
        add_bos=special.adds("bos", reference.adds(ids.get("bos"), 0)),
        add_eos=special.adds("eos", reference.adds(ids.get("eos"), -1)),
        merges=_merges(description, path),
    )
    return Claim(
        what="byte-level BPE",
        candidates=[replace(first, pre=name) for name in dict.fromkeys((*likeliest, *_CUTS))],
        reference=reference,
        ends=special.ends(),
        pieces=[text for token, kind in zip(tokens, types, strict=True) if kind == NORMAL and (text := _plain(token))],
        specials=_special_texts(added_tokens(checkpoint, description)),
        notes=_NFC if steps(description.get("normalizer")) else (),
    )


class _Reference(TokenizersReference):
    def normalize(self, text: str) -> str:
        normalizer = self.tokenizer.normalizer
        return text if normalizer is None else str(normalizer.normalize_str(text))


def _signature(tokenizer: Any) -> tuple[int, bool, bool]:
    def cut(text: str) -> list[tuple[int, int]]:
        return [span for _, span in tokenizer.pre_tokenizer.pre_tokenize_str(text)]

    return cut("1234")[0][1], len(cut("\tx")) == 1, (1, 3) in cut("x'S")


def _tokens(checkpoint: Checkpoint, description: Json, size: int) -> tuple[list[str], list[int]]:
    found = TokenList(checkpoint, size)
    vocabulary = description["model"].get("vocab")
    if not isinstance(vocabulary, dict):
        raise ConversionError(f"{checkpoint.folder / 'tokenizer.json'} has no vocabulary; fetch it again")
    for text, token in vocabulary.items():
        found.put(token, text, NORMAL)
    for entry in added_tokens(checkpoint, description):
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


def _special_texts(entries: Sequence[Json]) -> list[str]:
    """Texts with added tokens inside; not those that swallow the space beside them, as llama.cpp's do not."""
    texts = [str(entry["content"]) for entry in entries if not (entry.get("lstrip") or entry.get("rstrip"))]
    return [f"one {text}two\n{text} three" for text in texts[:512]]
