"""A comparison of the engine's tokenizer with the original one, before anything is converted.

A wrong pre-tokenizer gives a model that works but is slightly worse, which is hard to notice. So each candidate is
loaded as the engine loads it (llama.cpp from a vocabulary-only file) and compared with the original on difficult texts
and on the vocabulary's own pieces. The first candidate without a difference is chosen; without one the conversion fails
with the first text that differs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from itertools import compress
from operator import not_
from typing import Protocol

from edgespec.converters import tokenizer_texts
from edgespec.converters.vocabulary import CONTROL, GgufVocabulary, TokenizerSpec
from edgespec.errors import ConversionError

_MOST_PIECES = 20_000


class Tokenizer(Protocol):
    """A candidate as an engine loads it."""

    def encode(self, text: str, special: bool = False) -> Sequence[int]:
        """The tokens of `text`, none added; with `special`, special tokens in it count."""
        ...

    def control(self, token: int) -> bool:
        """Whether the token is recognised in a text only where special tokens count."""
        ...


def matching_candidate(
    spec: TokenizerSpec, open_tokenizer: Callable[[GgufVocabulary], AbstractContextManager[Tokenizer]], engine: str
) -> GgufVocabulary:
    """The first candidate of `spec` that tokenizes as its reference does.

    Args:
        spec: the candidates and their reference.
        open_tokenizer: loads a candidate as the engine does.
        engine: the engine's name, for the error.

    Raises:
        ConversionError: no candidate agrees with the reference.
    """
    tokens = [token for token, _ in spec.specials]
    specials = [spec.reference.normalize(text) for _, text in spec.specials]
    plain = (text for text in (*tokenizer_texts.TEXTS, *_in_context(spec.pieces)) if not spec.beyond(text))
    texts = [spec.reference.normalize(text) for text in plain]
    expected = spec.reference.encode(texts)
    plain_specials = spec.reference.encode(specials)
    recognised = spec.reference.encode(specials, special=True)
    refusal = ""
    for candidate in spec.candidates:
        with open_tokenizer(candidate) as tokenizer:
            # llama.cpp takes some tokens for control tokens whatever their type, those for code infilling, for example,
            # and others never, such as gpt-oss's "<|start|>".
            taken = [(candidate.types[token] == CONTROL) != tokenizer.control(token) for token in tokens]
            difference = (
                _difference(
                    tokenizer, compress(specials, map(not_, taken)), compress(plain_specials, map(not_, taken)), False
                )
                or _difference(tokenizer, texts, expected, special=False)
                or _difference(tokenizer, specials, recognised, special=True)
            )
        if not difference:
            return candidate
        refusal = refusal or difference
    raise ConversionError(
        f"{engine} has no tokenizer that agrees with this {spec.what}: {refusal} there; "
        "the converted model would be slightly wrong"
    )


def _in_context(pieces: Sequence[str]) -> list[str]:
    """Each piece alone and inside a sentence; an even sample where there are very many."""
    chosen = pieces[:: len(pieces) // _MOST_PIECES + 1]
    return [*chosen, *(f"so {piece} {piece}, and{piece}1" for piece in chosen[::4])]


def _difference(tokenizer: Tokenizer, texts: Iterable[str], expected: Iterable[Sequence[int]], special: bool) -> str:
    for text, tokens in zip(texts, expected, strict=True):
        found = tokenizer.encode(text, special)
        if list(found) != list(tokens):
            return f"{text!r} is {_short(tokens)} in the original and {_short(found)}"
    return ""


def _short(tokens: Sequence[int]) -> str:
    return f"{list(tokens[:12])}"[:-1] + (", ...]" if len(tokens) > 12 else "]")
