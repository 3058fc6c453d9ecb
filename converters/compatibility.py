"""Whether two checkpoints make a pair, as far as that can be told before they are converted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from edgespec.backends import require_same_tokens
from edgespec.converters import card, decoder, vocabulary
from edgespec.converters.checkpoint import Checkpoint
from edgespec.errors import VocabularyMismatch


@dataclass(frozen=True, slots=True)
class Side:
    """What of one checkpoint matters to the other. `ends` are the texts of the tokens that end a turn."""

    tokens: Sequence[str]
    ends: frozenset[str]
    template: str | None
    parameters: int

    @classmethod
    def of(cls, checkpoint: Checkpoint) -> Side:
        """ConversionError where it cannot be converted."""
        graph = decoder.read(checkpoint)
        claim = vocabulary.read(checkpoint, graph.vocabulary)
        tokens = claim.candidates[0].tokens
        ends = frozenset(tokens[token] for token in claim.ends)
        return cls(tokens, ends, card.templates(checkpoint).get("default"), graph.parameters())

    @property
    def size(self) -> int:
        return len(self.tokens)

    def label(self, token: int) -> str:
        return self.tokens[token]


@dataclass(frozen=True, slots=True)
class Likeness:
    """How alike a target and a draft are. `mismatch` says how the vocabularies differ; empty if they do not."""

    target: Side
    draft: Side
    mismatch: str

    @classmethod
    def of(cls, target: Checkpoint, draft: Checkpoint) -> Likeness:
        """Compare them. ConversionError where one of them cannot be converted."""
        sides = Side.of(target), Side.of(draft)
        try:
            require_same_tokens(*sides)
        except VocabularyMismatch as error:
            return cls(*sides, str(error).partition(";")[0])
        return cls(*sides, "")

    @property
    def share(self) -> float:
        """The draft's parameters over the target's."""
        return self.draft.parameters / self.target.parameters
