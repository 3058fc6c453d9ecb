"""That llama.cpp tokenizes as the original does: tried on text, before anything is converted.

A wrong pre-tokenizer gives a model that works and is subtly worse, which nobody notices. So each candidate
is loaded by llama.cpp from a vocabulary-only file and compared with the original on texts chosen to be nasty
and on the vocabulary's own pieces. The first candidate that agrees everywhere is it; if none does, the
conversion is refused with the first text that differs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from edgespec.converters import probes
from edgespec.converters.native import Tokenizer
from edgespec.converters.vocabulary import Claim, Vocabulary
from edgespec.converters.whole import scratch
from edgespec.errors import ConversionError

_MOST_PIECES = 20_000


def proven(claim: Claim, write: Callable[[Path, Vocabulary], None]) -> Vocabulary:
    """The first candidate of `claim` that agrees with its reference, told all ends of generation.

    `write(path, vocabulary)` makes a vocabulary-only GGUF. ConversionError if no candidate agrees.
    """
    specials = [claim.reference.normalize(text) for text in claim.specials]
    plain = (*probes.TEXTS, *_in_context(claim.pieces))
    texts = [*specials, *(claim.reference.normalize(text) for text in plain)]
    expected = claim.reference.encode(texts)
    recognised = claim.reference.encode(specials, special=True)
    refusal = ""
    for candidate in claim.candidates:
        with scratch() as folder:
            path = folder / "vocabulary.gguf"
            write(path, candidate)
            with Tokenizer(path) as tokenizer:
                difference = _difference(tokenizer, texts, expected, special=False) or _difference(
                    tokenizer, specials, recognised, special=True
                )
                if not difference:
                    return _with_ends(candidate, tokenizer, claim.ends)
        refusal = refusal or difference
    raise ConversionError(
        f"llama.cpp has no tokenizer that agrees with this {claim.what}: {refusal}; "
        "converted all the same, the model would be subtly wrong"
    )


def _in_context(pieces: Sequence[str]) -> list[str]:
    """Each piece by itself and inside a sentence; an even choice of them where there are very many."""
    chosen = pieces[:: len(pieces) // _MOST_PIECES + 1]
    return [*chosen, *(f"so {piece} {piece}, and{piece}1" for piece in chosen[::4])]


def _difference(tokenizer: Tokenizer, texts: Sequence[str], expected: Sequence[Sequence[int]], special: bool) -> str:
    for text, tokens in zip(texts, expected, strict=True):
        found = tokenizer.encode(text, special)
        if found != list(tokens):
            return f"{text!r} is {_short(tokens)} in the original and {_short(found)} in llama.cpp"
    return ""


def _short(tokens: Sequence[int]) -> str:
    return f"{list(tokens[:12])}"[:-1] + (", ...]" if len(tokens) > 12 else "]")


def _with_ends(vocabulary: Vocabulary, tokenizer: Tokenizer, ends: Sequence[int]) -> Vocabulary:
    """llama.cpp stops at eos and at some texts of its own; two more tokens can be named, as eot and eom."""
    missing = [token for token in ends if not tokenizer.ends(token)]
    if len(missing) > 2:
        named = [vocabulary.tokens[token] for token in missing]
        raise ConversionError(
            f"generation_config.json ends a text at {named} beside eos, and GGUF can name two; "
            "remove those that do not occur from its eos_token_id"
        )
    return replace(vocabulary, ids={**vocabulary.ids, **dict(zip(("eot", "eom"), missing, strict=False))})
