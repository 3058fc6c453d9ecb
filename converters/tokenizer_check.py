"""That an engine tokenizes as the original does: tried on text, before anything is converted.

A wrong pre-tokenizer gives a model that works and is subtly worse, which nobody notices. So each candidate
is loaded as the engine loads it (llama.cpp from a vocabulary-only file) and compared with the original on texts
chosen to be nasty and on the vocabulary's own pieces. The first candidate that agrees everywhere is it; if none
does, the conversion is refused with the first text that differs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from itertools import compress
from operator import not_
from typing import Protocol

from edgespec.converters import tokenizer_texts
from edgespec.converters.vocabulary import USER_DEFINED, Claim, Vocabulary
from edgespec.errors import ConversionError

_MOST_PIECES = 20_000


class Tokenizer(Protocol):
    """What an engine makes of a candidate."""

    def encode(self, text: str, special: bool = False) -> Sequence[int]:
        """The tokens of `text`, none added; with `special`, special tokens in it count."""
        ...

    def control(self, token: int) -> bool:
        """Whether it is recognised in a text only where special tokens count."""
        ...


def proven(claim: Claim, opened: Callable[[Vocabulary], AbstractContextManager[Tokenizer]], engine: str) -> Vocabulary:
    """The first candidate of `claim` that agrees with its reference, as `opened` by the engine of that name.

    ConversionError if no candidate agrees.
    """
    tokens = [token for token, _ in claim.specials]
    specials = [claim.reference.normalize(text) for _, text in claim.specials]
    plain = (text for text in (*tokenizer_texts.TEXTS, *_in_context(claim.pieces)) if not claim.beyond(text))
    texts = [claim.reference.normalize(text) for text in plain]
    expected = claim.reference.encode(texts)
    spelt = claim.reference.encode(specials)
    recognised = claim.reference.encode(specials, special=True)
    refusal = ""
    for candidate in claim.candidates:
        with opened(candidate) as tokenizer:
            # Some tokens, those for filling in code, say, llama.cpp takes for control tokens whatever it is told.
            taken = [candidate.types[token] == USER_DEFINED and tokenizer.control(token) for token in tokens]
            difference = (
                _difference(tokenizer, compress(specials, map(not_, taken)), compress(spelt, map(not_, taken)), False)
                or _difference(tokenizer, texts, expected, special=False)
                or _difference(tokenizer, specials, recognised, special=True)
            )
        if not difference:
            return candidate
        refusal = refusal or difference
    raise ConversionError(
        f"{engine} has no tokenizer that agrees with this {claim.what}: {refusal} there; "
        "converted all the same, the model would be subtly wrong"
    )


def _in_context(pieces: Sequence[str]) -> list[str]:
    """Each piece by itself and inside a sentence; an even choice of them where there are very many."""
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
