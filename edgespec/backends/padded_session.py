"""The part of a session that engines with padded passes share."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from ..errors import OptionError
from ..types import Floats
from .exactness import Exactness
from .sequence import SequenceCache
from .tap import FINAL, RowSource, Wanted

_FINAL_NAME = "output_norm"  # the output of the state from which logits are computed


class PaddedPasses(Protocol):
    """Passes over one KV cache."""

    def chain(self, tokens: Sequence[int], held: int, *, width: int = 0, silent: int = 0, logits: bool) -> None:
        """A pass over a chain of `tokens` from position `held`, padded to `width` tokens. The first `silent` of them
        need no logits.

        Raises:
            Interrupted, EngineError: the rows of the cache before `held` are unchanged.
        """
        ...

    def logits(self, n: int) -> Floats:
        """The first `n` rows of logits of the last pass after silent tokens, float32 [n, vocab]; a view."""
        ...

    def hidden(self, n: int) -> Mapping[int, Floats]:
        """The hidden states by layer of the last pass, float16 for models in half precision, else float32 [n, hidden];
        views, after silent tokens."""
        ...

    def rows(self, name: str, n: int) -> npt.NDArray[Any]:
        """The output `name` of hidden states for the first `n` tokens of the last pass, float16 or float32 [n, hidden];
        a view. It is one of those requested."""
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
        owed = self._held[self._computed :]
        self._run([*owed, *tokens], silent=len(owed), logits=logits)
        self._decoded = len(tokens) if logits else 0

    def _run(self, tokens: Sequence[int], *, silent: int, logits: bool) -> None:
        """A pass over `tokens` after those that are computed; the first `silent` of them have no logits."""
        self._decoded = 0
        start, width = self._computed, self._exactness.rounded_up(len(tokens))
        self._passes.chain(tokens, start, width=width, silent=silent, logits=logits)
        self._computed = start + len(tokens)
        self._follow(start, tokens, judged=logits)

    @abstractmethod
    def _room(self) -> int:
        """The most tokens of a pass of a prefill, with those owed."""

    def _chunk(self) -> int:
        return self._room() - self.owed

    def _recompute(self, most: int) -> None:
        while self.owed > most:
            self._run(self._held[self._computed :][: self._room()], silent=0, logits=False)

    def _row_source(self, layers: tuple[int, ...], wanted: Wanted) -> RowSource:  # noqa: ARG002 - rows are no dearer
        if self._exactness.width:
            raise OptionError(
                f"exact is {self._exactness.width}, but hidden rows need passes of other widths; leave exact out"
            )
        names = tuple(self._output(layer) for layer in layers)
        self._request(names)

        def rows(n: int) -> Floats:
            found = [self._passes.rows(name, n) for name in names]
            whole = found[0] if len(found) == 1 else np.concatenate(found, axis=1)
            return whole.astype(np.float32, copy=False)

        return rows

    def _output(self, layer: int) -> str:
        """The output of the graph that is the input of `layer`."""
        if layer == FINAL:
            return _FINAL_NAME
        if self.layers and not 1 <= layer < self.layers:
            raise OptionError(
                f"the input of layer {layer} cannot be read in this model, whose layers are 1 to {self.layers - 1}; "
                "use a drafter made for this model"
            )
        return f"hidden.{layer - 1}"

    @abstractmethod
    def _request(self, names: tuple[str, ...]) -> None:
        """Let all passes from now on give these outputs.

        Raises:
            OptionError: the graph does not have them.
        """

    def _logits(self, n: int) -> Floats:
        return self._passes.logits(n)

    def _cut(self, length: int) -> int:
        """Rows beyond the length are overwritten by later passes."""
        return length
