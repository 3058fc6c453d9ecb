"""The protocol of verifiers, and the context of a round for drafters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import numpy as np

from ..constraint import Constraint, masked
from ..errors import GrammarError, OptionError
from ..sampling import Sampling, picks
from ..types import Acceptance, Draft, Floats, Guess, Rows


class Verifier(Protocol):
    """How drafters sample tokens, and which of them are accepted."""

    name: str
    #: Whether a draft may be pruned once its tokens are known. Not for rejection and block: keeping a drawn token
    #: because of its value, or of the tokens after it, would bias the output, so how far to draft is decided before.
    trims: bool

    def draw(
        self, row: Floats, sampling: Sampling, context: Sequence[int], drafted: Sequence[int], stream: int = 0
    ) -> Guess:
        """A drafter's guess of the token after the committed `context` and `drafted`.

        Args:
            row: the drafter's logits at that position, float32 [vocabulary].
            drafted: the draft's tokens from the root to that position.
            stream: the number of the drafter in this round. Tokens of several drafters at one position are independent.
        """
        ...

    def accept(self, draft: Draft, rows: Rows, sampling: Sampling, context: Sequence[int]) -> Acceptance:
        """Which tokens of `draft` are accepted.

        Args:
            rows: the target's logits after the context and after each of the n nodes, float32 [1 + n, vocabulary],
                after the mask of a constraint.
        """
        ...


class RoundContext(NamedTuple):
    """What a drafter needs in a round: the committed tokens, and how the next ones are sampled."""

    verifier: Verifier
    sampling: Sampling
    #: All committed tokens, prompt included.
    tokens: Sequence[int]
    #: Whether a token is an end-of-generation token.
    is_eog: Callable[[int], bool]
    #: Committed tokens that the target's next pass computes again, before the draft (`Session.owed`).
    owed: int = 0
    #: The number of the drafter, where several draw tokens that are verified in one round; see `Verifier.draw`.
    stream: int = 0
    #: What may follow the committed tokens; None if anything may.
    constraint: Constraint | None = None

    def is_over(self, path: Sequence[int]) -> bool:
        """Whether the text ends with `path`, a path of guesses: by its last token, or by the constraint."""
        if path and self.is_eog(path[-1]):
            return True
        return self.constraint is not None and self.constraint.ended(path)

    def admitted(self, path: Sequence[int], guesses: Sequence[Guess]) -> Sequence[Guess]:
        """`guesses` of the token after `path` without those that the constraint does not admit.

        Drawn ones stay: `draw` masks their q, and to leave out a token that was drawn would bias the output.
        """
        constraint = self.constraint
        if constraint is None or not guesses:
            return guesses
        n = len(path)
        return [g for g in guesses if g.q is not None or constraint.admits((*path, g.token)) > n]

    def draw(self, row: Floats, drafted: Sequence[int], most: int = 1) -> Sequence[Guess]:
        """At most `most` guesses of the token after the context and `drafted`, from a drafter's logits after the mask
        of the constraint; none if the logits of all tokens that it allows are -inf, or it fails on this path.

        There is more than one only if a draft may be pruned (`Verifier.trims`): the others are the tokens that the
        target would sample, by the shared noise, if not the first.

        Args:
            row: the drafter's logits, float32 [vocabulary].
            drafted: the draft's tokens from the root to that position.
        """
        if self.constraint is None:
            return self._drawn(row, drafted, most)
        try:
            row = masked(row, self.constraint.allowed(drafted))
            return self._drawn(row, drafted, most) if row.max() > -np.inf else ()
        except (GrammarError, OptionError):
            # Too complex on this path, or a bias forbids all that is allowed: an error of the answer if it gets there.
            return ()

    def _drawn(self, row: Floats, drafted: Sequence[int], most: int) -> Sequence[Guess]:
        if most > 1 and self.verifier.trims:
            recent = self.sampling.recent(self.tokens, drafted)
            best = picks(row, self.sampling, len(self.tokens) + len(drafted), recent, most)
            return [Guess(token, probability) for token, probability in best]
        return (self.verifier.draw(row, self.sampling, self.tokens, drafted, self.stream),)
