"""That llama.cpp tokenizes as the original does: tried on text, before anything is converted.

A wrong pre-tokenizer gives a model that works and is subtly worse, which nobody notices. So each candidate is
loaded by llama.cpp from a vocabulary-only file and compared with the original on texts chosen to be nasty and
on the vocabulary's own pieces. The first candidate that agrees everywhere is it; if none does, the conversion is
refused with the first text that differs.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from edgespec.converters.native import Tokenizer
from edgespec.converters.vocabulary import Claim, Vocabulary

from edgespec.errors import ConversionError

_MOST_PIECES = 20_000

_BATTERY = (
    "Hello, world!", " leading", "trailing ", "  two  spaces   three    four", "\ttab\t\ttabs \t mixed",
    "a\nb\n\nc\n\n\nd \n e\r\nf\r\n\r\ng\n \n\t\nh", " \n", "\n ", "x  \n  y", "   ", "\n\n\n",
    "0 1 12 123 1234 12345 123456 1234567 12345678901234567890", "3.14159 1,000,000.00 1e-9 0x1F 2024-02-29 12:34:56",
    "I'm you're he's we'd they'll I've don't can't", "I'M YOU'RE HE'S WE'D THEY'LL I'VE DON'T CAN'T 'S'T'Re", "'tis ''quoted'' x's'",
    "naïve café résumé", "e\u0301a\u0308 n\u0303 \u1100\u1161\u11a8", "Straße ÆØÅ ŁÓDŹ İstanbul", "Привет, мир! ёлка",
    "Γειά σου Κόσμε", "שלום עולם", "مرحبا بالعالم ١٢٣", "हिन्दी में नमस्ते १२३", "สวัสดีชาวโลก", "你好，世界！１２３", "こんにちは世界 カタカナ ｶﾀｶﾅ",
    "안녕하세요 세계", "😀😃 👩‍👩‍👧‍👦 🏳️‍🌈 👍🏽 🇩🇪x", "x²+y³=½ ⅷ ∑∫√ ≠≤≥", "“quotes” ‘single’ – — … • €£¥ §¶", "a\u200bb\u200dc\ufeffd",
    "def f(x):\n    return x**2  # comment\n\n\tif (a&&b) { x[0] += 1; }", "<html><body class=\"x\">&amp;</body></html>",
    "https://example.org/a_b?c=d&e=%20f#g user@example.com C:\\path\\x.txt", "snake_case camelCase PascalCase kebab-case SCREAMING_CASE",
    "$100 #tag @user 50% ^_^ ~tilde `code` |pipe| {}[]() <<>> !!! ??? ... ;;; :::", "a.b,c;d:e!f?g", "ALLCAPS MiXeD iOS McDonald",
    "word1word 1word2 a1b2c3 v1.2.3-rc4", "\u00a0nbsp\u00a0 \u3000wide\u3000", "_under_ __dunder__ *bold* **x**", "\x00\x01\x7f control",
    "end.\n\nNext paragraph.\n- item\n- item 2\n  1. nested", "=== --- ___ ///  \\\\\\", "supercalifragilisticexpialidocious aaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
)  # fmt: skip


def proven(claim: Claim, write: Callable[[Path, Vocabulary], None]) -> Vocabulary:
    """The first candidate of `claim` that agrees with its reference, with the ends that llama.cpp has to be told.

    `write(path, vocabulary)` makes a vocabulary-only GGUF. ConversionError if no candidate agrees.
    """
    texts = [claim.reference.normalize(text) for text in (*_BATTERY, *_in_context(claim.pieces))]
    expected = claim.reference.encode(texts)
    specials = [claim.reference.normalize(text) for text in claim.specials]
    recognised = claim.reference.encode(specials, special=True)
    refusal = ""
    for candidate in claim.candidates:
        with tempfile.TemporaryDirectory(prefix="edgespec-") as folder:
            path = Path(folder) / "vocabulary.gguf"
            write(path, candidate)
            with Tokenizer(path) as tokenizer:
                difference = _difference(tokenizer, texts, expected, special=False) or _difference(
                    tokenizer, specials, recognised, special=True
                )
                if not difference:
                    return _with_ends(candidate, tokenizer, claim.ends)
        refusal = refusal or difference
    raise ConversionError(
        f"llama.cpp has no tokenizer that agrees with this {claim.what}: {refusal}; such a model would be subtly wrong"
    )


def _in_context(pieces: Sequence[str]) -> list[str]:
    """Each piece by itself and inside a sentence; an even choice of them where there are very many."""
    chosen = pieces[:: len(pieces) // _MOST_PIECES + 1]
    return [*chosen, *(f"so {piece} {piece}, and{piece}1" for piece in chosen[::4])]


def _difference(
    tokenizer: Tokenizer, texts: Sequence[str], expected: Sequence[Sequence[int]], special: bool
) -> str:
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
            f"generation_config.json ends a text at {len(missing)} more tokens than eos, {named}, and GGUF can name two; "
            "remove those that do not occur from its eos_token_id"
        )
    return replace(vocabulary, ids={**vocabulary.ids, **dict(zip(("eot", "eom"), missing, strict=False))})
