"""The protocols of a vocabulary, and what is common to all: keys, comparison, the tokens of a long text."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Protocol

from ..errors import VocabularyMismatch

_PADDING = 1024  # the most padding tokens by which vocabularies of one family may differ; Qwen2's differ by 384
_CHARACTERS = 16  # more characters than an average token of most texts has
_WAYS_OUT = (
    "use a draft model of the target's own family, or name this one with --draft to let it draft through text, "
    "or take --draft none"
)


class Pieces(Protocol):
    """The bytes of tokens, and which tokens end a text."""

    def token_bytes(self, token: int) -> bytes:
        """The UTF-8 bytes of `token`, possibly an incomplete character; empty for special tokens."""
        ...

    def is_eog(self, token: int) -> bool:
        """Whether `token` is an end-of-generation token."""
        ...


class Labels(Protocol):
    """The tokens of a model by their labels, to compare two vocabularies."""

    @property
    def size(self) -> int:
        """The number of tokens."""
        ...

    def label(self, token: int) -> str:
        """The vocabulary's own string for `token`; equal labels mean equal tokens."""
        ...


class Vocabulary(Pieces, Labels, Protocol):
    """The tokens of a model, and conversion between text and tokens."""

    bos: int | None
    #: The end-of-sequence token by the model's own settings; chat templates write it after earlier answers.
    eos: int | None
    #: The model's chat template in Jinja, None if it has none. Bytes that are not UTF-8 are lone surrogates in it.
    template: str | None

    def tokenize(self, text: str, *, special: bool = False, start: bool = False) -> list[int]:
        """The tokens of `text`.

        Args:
            special: whether the text of a special token becomes that token. Must be False for text of a user.
            start: whether this begins a sequence, so that a bos is added for models that require it.
        """
        ...

    def specials(self) -> Sequence[str]:
        """The texts of the special tokens; text of a user must never become one of these tokens."""
        ...


def tokens_up_to(
    vocabulary: Vocabulary, text: str, most: int, *, special: bool = False, start: bool = False
) -> list[int]:
    """The tokens of `text`, or only those of a prefix of it if they are already more than `most`.

    Tokenizing takes up to 300 bytes of memory per character, so a text that exceeds the context by far must not be
    tokenized whole. The prefix may end inside a word and therefore have a few more tokens: leave a margin in `most`.
    """
    length = _CHARACTERS * most
    while length < len(text):
        tokens = vocabulary.tokenize(text[:length], special=special, start=start)
        if len(tokens) > most:
            return tokens
        length *= 4
    return vocabulary.tokenize(text, special=special, start=start)


def fingerprint(vocabulary: Vocabulary) -> str:
    """A key for a vocabulary: a hash of the labels of all tokens."""
    labels = "\0".join(vocabulary.label(token) for token in range(vocabulary.size))
    return hashlib.sha256(labels.encode("utf-8", "replace")).hexdigest()


def require_same_tokens(target: Labels, draft: Labels) -> None:
    """Check that a draft model has the target's vocabulary, token by token.

    Models of one family pad their vocabularies to different sizes. Tokens that only one model has are never drafted, so
    the sizes may differ by at most 1024 tokens if all shared tokens are equal.

    Raises:
        VocabularyMismatch: the vocabularies differ; the message names the first token that does.
    """
    shared = min(target.size, draft.size)
    for token in range(shared):
        if (ours := target.label(token)) != (theirs := draft.label(token)):
            raise VocabularyMismatch(
                f"target and draft have different vocabularies: token {token} is {ours!r} in the target and "
                f"{theirs!r} in the draft; {_WAYS_OUT}"
            )
    if abs(target.size - draft.size) > _PADDING:
        raise VocabularyMismatch(
            f"target and draft have different vocabularies: {target.size} and {draft.size} tokens, so token {shared} "
            f"exists in one only; {_WAYS_OUT}"
        )
