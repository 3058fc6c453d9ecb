"""The part of a session that engines with padded passes share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from ..types import Floats
from .exactness import Exactness
from .sequence import SequenceCache


class PaddedPasses(Protocol):
    """Passes over one KV cache."""

    def chain(self, tokens: Sequence[int], held: int, *, width: int = 0, logits: bool) -> None:
        """A pass over a chain of `tokens` from position `held`, padded to `width` tokens.

        Raises:
            Interrupted, EngineError: the rows of the cache before `held` are unchanged.
        """
        ...

    def logits(self, n: int) -> Floats:
        """The first `n` rows of logits of the last pass, float32 [n, vocab]; a view."""
        ...

    def hidden(self, n: int) -> Mapping[int, Floats]:
        """The hidden states by layer of the last pass, float16 for models in half precision, else float32 [n, hidden];
        views."""
        ...


class PaddedSession(SequenceCache):
    """A session whose passes are padded, and which gives the hidden states of the last decode.

    Args:
        context: the most tokens of text; fewer if the model has fewer positions.
        positions: the number of positions of the model, of text and padding.
        exactness: how passes are padded.
    """

    _passes: PaddedPasses

    def __init__(self, vocab: int, context: int, positions: int, exactness: Exactness) -> None:
        super().__init__(vocab, max(1, min(context, positions - exactness.most_padding)))
        self._exactness = exactness
        self._decoded = 0  # tokens of the last pass with logits, unless one without followed

    @property
    def hidden(self) -> Mapping[int, Floats]:
        """The hidden states of the last decode by layer: the residual stream after the layer, float16 or float32
        [n, hidden], valid until the next call. Only for the layers requested when the session was opened."""
        return self._passes.hidden(self._decoded) if self._decoded else {}

    def _free(self) -> None:
        self._decoded = 0
        del self._passes  # it refers to the weights and to the cache

    def _pass_chain(self, tokens: Sequence[int], *, logits: bool) -> None:
        self._decoded = 0
        self._passes.chain(tokens, len(self._held), width=self._exactness.rounded_up(len(tokens)), logits=logits)
        self._decoded = len(tokens) if logits else 0

    def _logits(self, n: int) -> Floats:
        return self._passes.logits(n)

    def _cut(self, length: int) -> int:
        """Rows beyond the length are overwritten by later passes."""
        return length
