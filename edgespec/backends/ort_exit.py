"""One sequence of an ONNX model whose first layers draft for it (early exit; LayerSkip, Elhoushi et al. 2024).

The model runs in the parts of `onnx_parts`. The front keeps the stream that it computed for each token, so a
verification begins where the drafts ended: the front's work and its cache serve both, and only what is behind them is
computed. Nothing has to be told to go back: the front holds a text of its own, and what follows the first token that
differs from what is asked for is computed again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from ..errors import EngineError, Interrupted, OptionError
from ..types import Floats
from . import Interrupt, common_prefix
from .exactness import Exactness
from .onnx_file import Described
from .ort_cache import OrtCache
from .ort_package import CPU, bindings
from .ort_passes import WIDEST, widest_pass
from .padded_session import PaddedSession
from .tree_layout import Branches

_QUIET = 4  # log level "fatal": failures raise exceptions
_NO_ROWS = (
    "a model whose first layers draft gives no hidden rows; leave the drafter exit out (--drafter), or the other one"
)


@dataclass(frozen=True, slots=True)
class LoadedParts:
    """The onnxruntime sessions of the parts of a model, with the names of the streams between them."""

    front: Any
    back: Any
    head: Any
    early: str
    final: str
    model: Described


class ExitPasses:
    """Passes over one text, in parts; see `PaddedPasses`.

    Args:
        capacity: the most tokens of text.
    """

    def __init__(self, parts: LoadedParts, capacity: int, interrupt: Interrupt) -> None:
        model = parts.model
        self._interrupt, self._parts = interrupt, parts
        self._dtype = np.float16 if model.half else np.float32
        self._options = bindings().RunOptions()
        self._options.log_severity_level = _QUIET
        layers = range(model.exit_layer), range(model.exit_layer, model.layers)
        front, back = (OrtCache(model, capacity, self._dtype, CPU, part) for part in layers)
        self._front, self._back = _Part(parts.front, front), _Part(parts.back, back)
        self._head = _Part(parts.head)
        self._computed: list[int] = []  # the tokens in the front's cache
        self._streams = np.zeros((capacity, model.hidden), self._dtype)  # after the front, of these
        self._states = np.zeros((WIDEST, model.hidden), self._dtype)  # after the back, of the last pass
        self._rows: Floats = np.zeros((16, model.vocabulary), np.float32)
        self._ids, self._positions = np.zeros(WIDEST, np.int64), np.zeros(WIDEST, np.int64)
        self._lengths = np.zeros(1, np.int32), np.zeros(1, np.int32)
        self._none: npt.NDArray[Any] = np.zeros(0, self._dtype)  # a bias of zeros, never written to
        interrupt.register(self)

    def stop(self) -> None:
        """End the pass under way, between two nodes of its graph."""
        self._options.terminate = True

    def chain(self, tokens: Sequence[int], held: int, *, width: int = 0, silent: int = 0, logits: bool) -> None:  # noqa: ARG002
        """A pass over `tokens` from position `held` on; see `PaddedPasses`. It is never padded."""
        n = len(tokens)
        self._advance(tokens, held)
        streams, states = self._streams[held : held + n], self._states[:n]
        self._run(self._back, held, n, {self._parts.early: streams[None]}, {self._parts.final: states[None]})
        if logits:
            self._judge(states[silent:])

    def early(self, tokens: Sequence[int], held: int) -> Floats:
        """The logits of the exit layer after the first `held` tokens of the text and `tokens`, float32 [vocab]; a
        view. Raises as `chain`."""
        self._advance(tokens, held)
        last = held + len(tokens)
        self._judge(self._streams[last - 1 : last])
        row: Floats = self._rows[0]
        return row

    def logits(self, n: int) -> Floats:
        """See `PaddedPasses`."""
        return self._rows[:n]

    def hidden(self, n: int) -> Mapping[int, Floats]:  # noqa: ARG002
        """See `PaddedPasses`."""
        return {}

    def rows(self, name: str, n: int) -> NoReturn:  # noqa: ARG002
        """See `PaddedPasses`."""
        raise OptionError(_NO_ROWS)

    def _advance(self, tokens: Sequence[int], held: int) -> None:
        """Let the front have computed the first `held` tokens of the text, and `tokens`."""
        same = held + common_prefix(self._computed[held : held + len(tokens)], tokens)
        del self._computed[same:]
        left = tokens[same - held :]
        if not left:
            return
        n = len(left)
        self._ids[:n] = left
        streams = self._streams[same : same + n]
        self._run(self._front, same, n, {"input_ids": self._ids[None, :n]}, {self._parts.early: streams[None]})
        self._computed.extend(left)

    def _judge(self, states: npt.NDArray[Any]) -> None:
        """The logits of these states."""
        n = len(states)
        if len(self._rows) < n:
            self._rows = np.zeros((min(WIDEST, 2 * n), self._rows.shape[1]), np.float32)
        self._compute(self._head, n, {self._parts.final: states[None]}, {"logits": self._rows[None, :n]})

    def _run(self, part: _Part, held: int, n: int, inputs: _Arrays, outputs: _Arrays) -> None:
        """A pass of layers over `n` tokens after `held` others."""
        total = held + n
        self._positions[:n] = np.arange(held, total)
        self._lengths[0][0], self._lengths[1][0] = total - 1, total
        if len(self._none) < n * total:
            self._none = np.zeros(2 * n * total, self._dtype)
        places: dict[str, npt.NDArray[Any]] = {
            "position_ids": self._positions[None, :n],
            "seqlens_k": self._lengths[0],
            "total_sequence_length": self._lengths[1],
            "attention_bias": self._none[: n * total].reshape(1, 1, n, total),
        }
        self._compute(part, n, {**places, **inputs}, outputs)

    def _compute(self, part: _Part, n: int, inputs: _Arrays, outputs: _Arrays) -> None:
        self._options.terminate = False
        if self._interrupt.is_set:  # tested after `terminate` is reset: if it is set later, `stop` ends this pass
            raise Interrupted
        try:
            part.run(inputs, outputs, self._options)
        except Exception as error:  # exceptions of pybind, which have no common base class
            if self._interrupt.is_set:
                raise Interrupted from None
            raise EngineError(f"ONNX Runtime could not compute {n} tokens ({error})") from error


_Arrays = Mapping[str, npt.NDArray[Any]]


class _Part:
    """A graph with its part of the cache."""

    def __init__(self, session: Any, cache: OrtCache | None = None) -> None:
        self._session, self._binding = session, session.io_binding()
        self._read = {each.name for each in session.get_inputs()}
        self._cache = cache
        if cache is not None:
            cache.bind(self._binding)

    def run(self, inputs: _Arrays, outputs: _Arrays, options: Any) -> None:
        """Compute `outputs` in place, from those of `inputs` that the graph reads."""
        value = bindings().OrtValue.ortvalue_from_numpy
        for name, array in inputs.items():
            if name in self._read:
                self._binding.bind_ortvalue_input(name, value(array))
        for name, array in outputs.items():
            self._binding.bind_ortvalue_output(name, value(array))
        self._session.run_with_iobinding(self._binding, options)


class OrtExitSession(PaddedSession):
    """One sequence. It decodes chains only, and gives no hidden rows.

    Args:
        context: the most tokens of text; fewer if the model has fewer positions.
    """

    can_tree = False
    leaves = 0
    widest = WIDEST
    _passes: ExitPasses

    def __init__(self, parts: LoadedParts, interrupt: Interrupt, context: int, *, identity: str) -> None:
        model = parts.model
        super().__init__(model.vocabulary, context, model.context, Exactness(0))
        self.identity, self.layers, self.layer_width = identity, model.layers, model.hidden
        self._passes = ExitPasses(parts, self.context, interrupt)

    def early(self, tokens: Sequence[int]) -> Floats:
        """The logits of the exit layer after the text and `tokens`, which do not become part of it, float32 [vocab];
        a view that is valid until the next call.

        Raises:
            ClosedError: the session is closed.
            EngineError, Interrupted: the pass failed, or was interrupted.
        """
        self._require_open()
        return self._passes.early(tokens, len(self._held))

    def _room(self) -> int:
        return widest_pass(len(self._held))

    def _request(self, names: tuple[str, ...]) -> None:  # noqa: ARG002
        raise OptionError(_NO_ROWS)

    def _pass_tree(self, tokens: Sequence[int], branches: Branches) -> None:  # noqa: ARG002
        raise EngineError("this session decodes chains only; ask can_tree before giving it a tree")

    def _keep(self, branches: Branches, path: Sequence[int]) -> None:
        """There are no trees."""


class OrtExitHead:
    """The exit of a session as a drafter uses it; a `Head`."""

    def __init__(self, target: OrtExitSession) -> None:
        self.vocab, self.context = target.vocab, target.context
        self._target = target

    def follows(self, context: Sequence[int]) -> bool:
        """Whether the target holds all of `context` but its last token."""
        return list(self._target.tokens) == list(context[:-1])

    def logits(self, last: int, path: Sequence[int]) -> Floats:
        """See `Head`."""
        return self._target.early([last, *path])

    def close(self) -> None:
        """Nothing is held besides the session."""
