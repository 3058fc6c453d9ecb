"""A draft model with a vocabulary of its own drafts through text.

The committed context is written in the draft model's tokens, and what it says then in the target's. transformers
calls a relative of this "universal assisted generation"; Timor et al. 2025, "Accelerating LLM Inference with Lossless
Speculative Decoding Algorithms for Heterogeneous Vocabularies", call theirs string-level exact match.

It drafts greedily, and its guesses are point masses: two vocabularies share neither noise nor a distribution. They
follow from the context alone, so every verifier may cut them anywhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ..backends import Session, Vocabulary, common_prefix
from ..text.retokenize import Context, Line, SpecialTokens, Writer, mark, parts, settled, whole
from ..types import Floats, Guess, Round
from ..verify import RoundContext

_CATCH_UP = 8  # tokens up to which one decode catches up; logits of longer stretches would only be thrown away
_AHEAD = 8  # tokens drafted beyond a guess, at most
_STRAYS = 0.03  # of the draft's tokens: from here on guessing half a word costs more than waiting for its end
_FAR = 3  # tokens of text, in scripts that may lack spaces, behind which the first is taken for whole
_STEPS = 16  # guesses that the first price of one counts for


class CrossVocabularyDrafter:
    """Drafts with a session of its own, which must hold nothing that others need.

    A token is guessed once the text drafted behind it shows that it is complete; that text is kept for the next
    round, where it is there already if the target says the same. Where the draft's tokens end in the middle of the
    target's hardly ever, nothing is waited for.

    Args:
        session: the draft model's.
        target: the vocabulary to guess in.
        draft: the draft model's.
        step_price: measured seconds of one of its passes; the drafter's own follows the passes a guess takes.
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
        self._patient = True
        session.rollback(0)

    def begin(self, round_context: RoundContext) -> None:
        self._context.read(round_context.tokens)
        self._patient = self._line.strays(self._context) > _STRAYS
        self.step_price = self._pass_price * self._passes / self._guesses

    def guess(self, path: Sequence[int], most: int) -> Sequence[Guess]:
        if most < 1 or (path and self._target.is_eog(path[-1])):
            return ()
        text = self._context.text + b"".join(map(self._specials.spell, path))
        self._keep_up(text)
        found = None
        while self._line.agrees(text):
            found = self._found(text, path)
            if (found is not None and found.certain) or self._line.beyond(len(text)) >= _AHEAD or not self._say():
                break
        if found is None:
            return ()
        self._guesses += 1
        stop = len(text) + len(self._specials.spell(found.token))
        return (Guess(found.token, self._line.sureness(len(text), stop)),)

    def observe(self, round: Round) -> None:  # noqa: A002
        """The next context says it all."""

    def close(self) -> None:
        self._session.close()

    def _keep_up(self, text: bytes) -> None:
        """Let the line follow `text` unless it goes there by itself, and the cache the line."""
        line, held = self._line, self._session.tokens
        if line.agrees(text) and line.given <= len(text) <= len(line.text) and not self._refused(text):
            return
        kept = line.follow(text)
        kept += common_prefix(held[kept:], line.tokens[kept:])
        self._session.rollback(max(0, min(kept, len(held), len(line.tokens) - 1)))

    def _refused(self, text: bytes) -> bool:
        """Whether the target ended `text` in the middle of a token that it could have said: it means something else
        than what was drafted beyond."""
        if not self._context.tokens or len(text) != len(self._context.text):
            return False
        last = self._context.tokens[-1]
        drafted = next(parts(bytes(self._line.text[len(text) :])), 0)
        ending = self._target.token_bytes(last)
        if isinstance(drafted, int) or not ending or whole(text) < len(text):
            return False
        return self._writer.tokens((ending + drafted).decode("utf-8", "replace"))[:1] != [last]

    def _say(self) -> bool:
        """Draft one more token; False where none is to be had."""
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
        if not text and self._specials.meant(token) is not None:
            text = mark(token)
        if text:
            self._line.add(token, text, _top(row))
        return bool(text)

    def _found(self, text: bytes, path: Sequence[int]) -> _Found | None:
        """The target's first token of what was drafted beyond `text`; None where there is none yet."""
        drafted = bytes(self._line.text[len(text) :])
        first = next(parts(drafted), b"")
        if isinstance(first, int):
            token = self._specials.meant(first)
            return None if token is None else _Found(token, True)
        begun, tokens = self._begun(text, path)
        end = whole(begun + first)
        letters = (begun + first)[:end].decode("utf-8", "replace")
        written = self._writer.tokens(letters)
        rest = written[len(tokens) :]
        if not rest or written[: len(tokens)] != tokens:
            return None
        closed = end == len(begun + first) and (len(first) < len(drafted) or not self._patient)
        if closed or (len(rest) >= _FAR and not letters.isascii()):
            return _Found(rest[0], True)
        size = len((begun + self._target.token_bytes(rest[0])).decode("utf-8", "replace"))
        return _Found(rest[0], settled(letters, size))

    def _begun(self, text: bytes, path: Sequence[int]) -> tuple[bytes, list[int]]:
        """An unfinished character at the end of `text`: its bytes, and the target's tokens that spell them."""
        start, tokens = len(text), list[int]()
        before = [*self._context.tokens[-3:], *path]
        while before and start > whole(text):
            tokens.insert(0, before.pop())
            start -= len(self._specials.spell(tokens[0]))
        return text[start:], tokens


class _Found(NamedTuple):
    token: int
    #: Whether it stays what it is whatever follows.
    certain: bool


def _top(row: Floats) -> float:
    """The softmax probability of the likeliest token."""
    return float(1.0 / np.exp(row - row.max()).sum())
