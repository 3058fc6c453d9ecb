"""SentencePiece-style BPE: Llama 2, TinyLlama, Mistral, from tokenizer.model, tokenizer.json or both.

llama.cpp merges the pair whose result has the highest score. tokenizer.model holds scores; tokenizer.json
holds merges in order, whose rank does as well. Control tokens, bytes and the unknown token have types of
their own.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from edgespec.converters.checkpoint import Checkpoint, Json
from edgespec.converters.vocabulary import (
    BYTE,
    CONTROL,
    NORMAL,
    UNKNOWN,
    USER_DEFINED,
    GgufVocabulary,
    Reference,
    SpecialTokens,
    TokenizerSpec,
    TokenizersReference,
    TokenList,
    added_tokens,
    has_step,
    special_texts,
)
from edgespec.errors import ConversionError
from edgespec.extras import import_package

_SPACE = "\u2581"  # how SentencePiece writes a space
_BYTE = re.compile(r"<0x([0-9A-F]{2})>")
_METASPACE = (  # one setting of llama.cpp's stands for all these cases
    (
        "llama.cpp prefixes a space to text that begins with one, and after special tokens, as SentencePiece "
        "did; the Metaspace step of tokenizer.json may not"
    ),
)
#: Special tokens of Gemma 4 that stand around its reasoning and its calls of tools.
_SHOWN = frozenset(
    {"<|channel>", "<channel|>", "<|tool_call>", "<tool_call|>", "<|tool_response>", "<tool_response|>", '<|"|>'}
)
_UNREAD = -1000.0  # the score of a token where merges decide
_NEVER = -1e9  # the score of what no merge makes
_KINDS = {
    1: "Unigram",
    2: "BPE",
    3: "word",
    4: "character",
}  # TrainerSpec.ModelType of sentencepiece_model.proto


def read(checkpoint: Checkpoint, description: Json | None, size: int) -> TokenizerSpec:
    """The candidates by tokenizer.json (`description`), else by tokenizer.model. ConversionError if unsupported."""
    model = _sentencepiece(checkpoint.folder / "tokenizer.model")
    metaspace = False
    reference: Reference
    if description is not None:
        metaspace = has_step(description.get("pre_tokenizer"), "Metaspace")
        fast = (_MetaspaceReference if metaspace else TokenizersReference)(checkpoint)
        reference, find = fast, fast.tokenizer.token_to_id
        score_lists = [scores for scores in (_model_scores(model, size), _merge_scores(description, size)) if scores]
        tokens, types = _described_tokens(checkpoint, description, size)
        begins, finishes = fast.adds, fast.adds
    else:
        if model is None:
            raise ConversionError(
                f"{checkpoint.folder / 'tokenizer.model'} is not a SentencePiece model; fetch it again"
            )
        reference = _SentencePieceReference(model)
        score_lists = [_model_scores(model, size)]
        tokens, types = _model_tokens(checkpoint, model, size)
        find = {text: token for token, text in enumerate(tokens)}.get
        begins, finishes = (lambda *_: True), (lambda *_: False)  # what transformers' LlamaTokenizer does
    _check_bytes(checkpoint, tokens)
    special = SpecialTokens(checkpoint, find, size)
    ids = special.ids()
    first = GgufVocabulary(
        model="llama",
        pre="default",
        tokens=tokens,
        types=types,
        ids=ids,
        add_bos=special.adds("bos", begins(ids.get("bos"), 0)),
        add_eos=special.adds("eos", finishes(ids.get("eos"), -1)),
    )
    candidates = [
        replace(first, scores=scores, add_space_prefix=prefix) for scores in score_lists for prefix in (True, False)
    ]
    if description is not None and str(checkpoint.config.get("model_type")).startswith("gemma4"):
        candidates.insert(0, _gemma4(first, description))
    return TokenizerSpec(
        what="SentencePiece-style BPE",
        candidates=candidates,
        reference=reference,
        ends=special.ends(),
        pieces=[text.replace(_SPACE, " ") for text, kind in zip(tokens, types, strict=True) if kind == NORMAL],
        specials=[] if metaspace else _specials(checkpoint, description, size),
        notes=_METASPACE if metaspace else (),
    )


def _gemma4(words: GgufVocabulary, description: Json) -> GgufVocabulary:
    """As llama.cpp knows Gemma 4's tokenizer: merges in order; and some special tokens are shown in a text."""
    merges = [merge if isinstance(merge, list) else str(merge).split(" ") for merge in description["model"]["merges"]]
    types = [USER_DEFINED if text in _SHOWN else kind for text, kind in zip(words.tokens, words.types, strict=True)]
    return replace(
        words,
        model="gemma4",
        pre="gemma4",
        types=types,
        scores=[_UNREAD] * len(types),
        merges=[" ".join(halves) for halves in merges],
        add_bos=True,
        add_space_prefix=False,
    )


class _MetaspaceReference(TokenizersReference):
    """The original tokenizer, for texts without a leading space and without special tokens: see _METASPACE."""

    def normalize(self, text: str) -> str:
        return text.lstrip(" ")


class _SentencePieceReference:
    def __init__(self, model: Any) -> None:
        self._model = model

    def encode(self, texts: Sequence[str], special: bool = False) -> list[list[int]]:
        del special  # SentencePiece itself never recognises control tokens in a text
        return [list(self._model.encode(text)) for text in texts]

    def normalize(self, text: str) -> str:
        return text


def _sentencepiece(path: Path) -> Any:
    """The model in `path`; None if that is missing or something else (Llama 3 has a file of that name)."""
    if not path.is_file():
        return None
    package = import_package("sentencepiece", "reading tokenizer.model")
    try:
        model = package.SentencePieceProcessor(model_file=str(path))
    except (OSError, RuntimeError):
        return None
    kind = _model_type(model.serialized_model_proto())
    if kind != 2:
        raise ConversionError(f"{path}: {_KINDS.get(kind, kind)} models are not supported; BPE models are")
    return model


def _model_type(proto: bytes) -> int:
    """ModelProto.trainer_spec (field 2) .model_type (field 3; 1, Unigram, where absent) in protobuf bytes."""
    for field, trainer in _fields(proto):
        if field == 2 and isinstance(trainer, bytes):
            return next((value for inner, value in _fields(trainer) if inner == 3 and isinstance(value, int)), 1)
    return 1


def _fields(data: bytes) -> Iterator[tuple[int, bytes | int]]:
    """The fields of one protobuf message (https://protobuf.dev/programming-guides/encoding)."""
    place = 0

    def varint() -> int:
        nonlocal place
        value = shift = 0
        while True:
            byte = data[place]
            place += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while place < len(data):
        key = varint()
        if key & 7 == 0:
            yield key >> 3, varint()
        else:
            length = {1: 8, 5: 4}.get(key & 7) or varint()
            yield key >> 3, data[place : place + length]
            place += length


def _model_scores(model: Any, size: int) -> list[float]:
    if model is None or model.get_piece_size() > size:
        return []
    n = model.get_piece_size()
    return [model.get_score(token) for token in range(n)] + [_NEVER] * (size - n)


def _merge_scores(description: Json, size: int) -> list[float]:
    """The better the rank of the first merge that makes a token, the higher its score."""
    scores = [_NEVER] * size
    vocabulary = description["model"]["vocab"]
    for rank, merge in reversed(list(enumerate(description["model"].get("merges") or []))):
        left, right = merge if isinstance(merge, list) else merge.split(" ")
        token = vocabulary.get(left + right)
        if token is not None and token < size:
            scores[token] = -float(rank)
    return scores


def _described_tokens(checkpoint: Checkpoint, description: Json, size: int) -> tuple[list[str], list[int]]:
    found = TokenList(checkpoint, size)
    unknown = description["model"].get("unk_token")
    for text, token in description["model"]["vocab"].items():
        kind = UNKNOWN if text == unknown else BYTE if _BYTE.fullmatch(text) else NORMAL
        found.put(token, text, kind)
    _put_added(found, added_tokens(checkpoint, description, size), unknown)
    return found.lists()


def _model_tokens(checkpoint: Checkpoint, model: Any, size: int) -> tuple[list[str], list[int]]:
    found = TokenList(checkpoint, size)
    unknown = None
    for token in range(model.get_piece_size()):
        text = model.id_to_piece(token)
        if model.is_unknown(token):
            unknown, kind = text, UNKNOWN
        else:
            kind = CONTROL if model.is_control(token) else BYTE if model.is_byte(token) else NORMAL
        found.put(token, text, kind)
    _put_added(found, added_tokens(checkpoint, None, size), unknown)
    return found.lists()


def _put_added(found: TokenList, entries: Sequence[Json], unknown: str | None) -> None:
    for entry in entries:
        if entry["content"] == unknown:
            continue
        found.put(entry["id"], _text(entry), CONTROL if entry.get("special") else USER_DEFINED)


def _text(entry: Json) -> str:
    """An added token as it is in a text: llama.cpp searches for it before it replaces spaces."""
    text = str(entry["content"])
    return text if entry.get("special") else text.replace(_SPACE, " ")


def _check_bytes(checkpoint: Checkpoint, tokens: list[str]) -> None:
    """ConversionError if a byte token is missing: llama.cpp uses them for unknown text, and aborts without one."""
    missing = 256 - sum(1 for text in set(tokens) if _BYTE.fullmatch(text))
    if missing:
        raise ConversionError(
            f"{checkpoint.folder}: the tokenizer lacks {missing} of the 256 byte tokens <0x00>..<0xFF>; "
            "only SentencePiece models trained with byte_fallback are supported"
        )


def _specials(checkpoint: Checkpoint, description: Json | None, size: int) -> list[tuple[int, str]]:
    """The special tokens of tokenizer.json, each with a text; empty without it, since tokenizer.model has none."""
    if description is None:
        return []
    entries = added_tokens(checkpoint, description, size)
    unknown = description["model"].get("unk_token")
    hidden = {unknown, *(_SHOWN if str(checkpoint.config.get("model_type")).startswith("gemma4") else ())}
    return special_texts({**entry, "content": _text(entry)} for entry in entries if entry["content"] not in hidden)
