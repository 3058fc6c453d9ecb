"""What a verifier is, and how drafters draw by it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from ..sampling import Sampling, picks
from ..types import Acceptance, Draft, Floats, Guess


class Verifier(Protocol):
    """How drafters draw, and what is accepted of what they drew."""

    name: str
    #: Whether a draft may be cut once its tokens are known. Not for rejection and block: keeping a drawn token
    #: because of what it is (or of what follows it) would bias the output; how far to draft must be settled before.
    trims: bool

    def draw(self, row: Floats, sampling: Sampling, context: Sequence[int], drafted: Sequence[int]) -> Guess:
        """A drafter's token to follow the committed `context` and `drafted`, the draft's tokens above it.

        `row` float32 [vocabulary]: the drafter's own logits there.
        """
        ...

    def accept(self, draft: Draft, rows: Floats, sampling: Sampling, context: Sequence[int]) -> Acceptance:
        """What the target keeps of `draft`.

        `rows` float32 [1 + n, vocabulary]: the target's logits after the context and after each draft node.
        """
        ...


class RoundContext(NamedTuple):
    """What a drafter is told of a round: the text so far, and how tokens are drawn to follow it."""

    verifier: Verifier
    sampling: Sampling
    #: All that is committed.
    tokens: Sequence[int]
    #: Whether a token ends the text (end of generation).
    is_eog: Callable[[int], bool]

    def draw(self, row: Floats, drafted: Sequence[int], most: int = 1) -> Sequence[Guess]:
        """At most `most` guesses from a drafter's logits `row`, to follow the context and `drafted`.

        More than one only where a draft may be cut (`Verifier.trims`): others are what the target would say, by the
        noise it shares, if not the first.
        """
        if most > 1 and self.verifier.trims:
            recent = self.sampling.recent(self.tokens, drafted)
            best = picks(row, self.sampling, len(self.tokens) + len(drafted), recent, most)
            return [Guess(token, probability) for token, probability in best]
        return (self.verifier.draw(row, self.sampling, self.tokens, drafted),)
