"""The compatibility of two checkpoints as target and draft, before they are converted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from edgespec.backends import require_same_tokens
from edgespec.converters import card, decoder, vocabulary
from edgespec.converters.checkpoint import Checkpoint
from edgespec.errors import VocabularyMismatch


@dataclass(frozen=True, slots=True)
class ModelTraits:
    """The properties of a checkpoint that are compared. `ends` are the texts of the tokens that end a turn."""

    tokens: Sequence[str]
    ends: frozenset[str]
    template: str | None
    parameters: int

    @classmethod
    def of(cls, checkpoint: Checkpoint) -> ModelTraits:
        """Read a checkpoint. ConversionError if it cannot be converted."""
        graph = decoder.read(checkpoint)
        spec = vocabulary.read(checkpoint, graph.vocabulary)
        tokens = spec.candidates[0].tokens
        ends = frozenset(tokens[token] for token in spec.ends)
        return cls(tokens, ends, card.templates(checkpoint).get("default"), graph.parameters())

    @property
    def size(self) -> int:
        return len(self.tokens)

    def label(self, token: int) -> str:
        return self.tokens[token]


@dataclass(frozen=True, slots=True)
class Compatibility:
    """A target, a draft, and the first difference of their vocabularies; `mismatch` is empty if they are the same."""

    target: ModelTraits
    draft: ModelTraits
    mismatch: str

    @classmethod
    def of(cls, target: Checkpoint, draft: Checkpoint) -> Compatibility:
        """Compare two checkpoints. ConversionError if one of them cannot be converted."""
        sides = ModelTraits.of(target), ModelTraits.of(draft)
        try:
            require_same_tokens(*sides)
        except VocabularyMismatch as error:
            return cls(*sides, str(error).partition(";")[0])
        return cls(*sides, "")

    @property
    def share(self) -> float:
        """The draft's parameters over the target's."""
        return self.draft.parameters / self.target.parameters
