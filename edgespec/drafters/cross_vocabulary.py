"""A draft model whose vocabulary differs from the target's: it drafts through text.

The committed context is retokenized for the draft model, and the text that it drafts is retokenized for the target. A
similar method in transformers is "universal assisted generation"; Timor et al. 2025, "Accelerating LLM Inference with
Lossless Speculative Decoding Algorithms for Heterogeneous Vocabularies", have "string-level exact match".

It drafts greedily, and its guesses are point masses, because two vocabularies have neither noise nor distributions in
common. The guesses depend on the context alone, so a draft may be pruned anywhere under every verifier.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ..backends import Session, Vocabulary, common_prefix
from ..text.retokenize import Context, Line, SpecialTokens, Writer, mark, parts, settled, whole
from ..types import Floats, Guess, Round
from ..verify import RoundContext

_CATCH_UP = 8  # the most pending tokens that are decoded in one pass; longer ones are prefilled, without logits
_AHEAD = 8  # the most draft tokens beyond a guess
_MISALIGNED = 0.03  # share of draft tokens that end inside a target token; above it, wait for the end of a word
_COMPLETE = 3  # in scripts without spaces, target tokens of drafted text after which the first is complete
_STEPS = 16  # weight of the initial price of a guess, in guesses


class CrossVocabularyDrafter:
    """Drafts with a session of its own.

    A token is guessed as soon as the text drafted after it shows that it is complete. That text is kept for the next
    round, and used if the target accepts the guess. If draft tokens rarely end inside a target token, the drafter does
    not wait for more text.

    Args:
        session: of the draft model; its cache is cleared.
        target: the vocabulary of the guesses.
        draft: the vocabulary of the draft model.
        step_price: measured seconds of a pass of the draft model. The drafter's `step_price` is that of a guess, by the
            number of passes that guesses took.
    """

    name = "cross-vocabulary"

    def __init__(self, session: Session, target: Vocabulary, draft: Vocabulary, step_price: float = 0.0) -> None:
        self.step_price = step_price
        self._pass_price = step_price
        self._passes = self._guesses = _STEPS
        self._session = session
        self._target = target
        self._draft = draft
        self._writer = Writer(target)
        self._specials = SpecialTokens(target, draft)
        self._context = Context(target, self._specials)
        self._line = Line(draft)
        self._waits = True
        session.rollback(0)

    def begin(self, round_context: RoundContext) -> None:
        self._context.read(round_context.tokens)
        self._waits = self._line.misaligned(self._context) > _MISALIGNED
        self.step_price = self._pass_price * self._passes / self._guesses

    def guess(self, path: Sequence[int], most: int) -> Sequence[Guess]:
        if most < 1 or (path and self._target.is_eog(path[-1])):
            return ()
        text = self._context.text + b"".join(map(self._specials.to_bytes, path))
        self._follow(text)
        found = None
        while self._line.agrees(text):
            found = self._found(text, path)
            if (
                (found is not None and found.certain)
                or self._line.beyond(len(text)) >= _AHEAD
                or not self._draft_token()
            ):
                break
        if found is None:
            return ()
        self._guesses += 1
        stop = len(text) + len(self._specials.to_bytes(found.token))
        return (Guess(found.token, self._line.probability(len(text), stop)),)

    def observe(self, round: Round) -> None:  # noqa: A002
        """Nothing to do: `begin` gets all committed tokens."""

    def close(self) -> None:
        self._session.close()

    def _follow(self, text: bytes) -> None:
        """Make the line begin with `text`, unless what it drafted agrees with it, and roll the cache back to the
        line."""
        line, held = self._line, self._session.tokens
        if line.agrees(text) and line.given <= len(text) <= len(line.text) and not self._rejected(text):
            return
        kept = line.follow(text)
        kept += common_prefix(held[kept:], line.tokens[kept:])
        self._session.rollback(max(0, min(kept, len(held), len(line.tokens) - 1)))

    def _rejected(self, text: bytes) -> bool:
        """Whether the target ended `text` inside a token that it could have chosen. Then the text drafted beyond is
        wrong, because the target would have chosen the whole token."""
        if not self._context.tokens or len(text) != len(self._context.text):
            return False
        last = self._context.tokens[-1]
        drafted = next(parts(bytes(self._line.text[len(text) :])), 0)
        ending = self._target.token_bytes(last)
        if isinstance(drafted, int) or not ending or whole(text) < len(text):
            return False
        return self._writer.tokens((ending + drafted).decode("utf-8", "replace"))[:1] != [last]

    def _draft_token(self) -> bool:
        """Draft one more token; False if none is possible."""
        pending = self._line.tokens[len(self._session.tokens) :]
        if not pending or len(self._line.tokens) > self._session.context:
            return False
        if len(pending) > _CATCH_UP:
            self._session.prefill(pending[:-1])
            pending = pending[-1:]
        row = self._session.decode(pending)[-1]
        self._passes += 1
        token = int(row.argmax())
        text = self._draft.token_bytes(token)
        if not text and self._specials.target_token(token) is not None:
            text = mark(token)
        if text:
            self._line.add(token, text, _top(row))
        return bool(text)

    def _found(self, text: bytes, path: Sequence[int]) -> _Found | None:
        """The target's first token of the text drafted beyond `text`; None if there is none yet."""
        drafted = bytes(self._line.text[len(text) :])
        first = next(parts(drafted), b"")
        if isinstance(first, int):
            token = self._specials.target_token(first)
            return None if token is None else _Found(token, True)
        begun, tokens = self._begun(text, path)
        end = whole(begun + first)
        letters = (begun + first)[:end].decode("utf-8", "replace")
        written = self._writer.tokens(letters)
        rest = written[len(tokens) :]
        if not rest or written[: len(tokens)] != tokens:
            return None
        closed = end == len(begun + first) and (len(first) < len(drafted) or not self._waits)
        if closed or (len(rest) >= _COMPLETE and not letters.isascii()):
            return _Found(rest[0], True)
        size = len((begun + self._target.token_bytes(rest[0])).decode("utf-8", "replace"))
        return _Found(rest[0], settled(letters, size))

    def _begun(self, text: bytes, path: Sequence[int]) -> tuple[bytes, list[int]]:
        """An incomplete character at the end of `text`: its bytes, and the target's tokens for them."""
        start, tokens = len(text), list[int]()
        before = [*self._context.tokens[-3:], *path]
        while before and start > whole(text):
            tokens.insert(0, before.pop())
            start -= len(self._specials.to_bytes(tokens[0]))
        return text[start:], tokens


class _Found(NamedTuple):
    token: int
    #: Whether it is independent of the text that follows.
    certain: bool


def _top(row: Floats) -> float:
    """The softmax probability of the likeliest token."""
    return float(1.0 / np.exp(row - row.max()).sum())
