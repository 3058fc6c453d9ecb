"""Heads over the final states of their target, run by ONNX Runtime beside any engine."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import ClosedError, EngineError, ModelError, ModelFileError
from ..storage.checksum import sampled
from ..types import Floats, Ints
from . import FINAL, Device, HiddenRows, Interrupt, Labels, Session
from .head_fit import is_same
from .machine import physical_cores
from .onnx_head import DescribedHead, read_head
from .ort_eagle import EagleHead
from .ort_package import UNSATURATED, bindings

_QUIET = 4
_SMALL = 4_000_000  # parameters that one thread computes


def open_model(path: Path, device: Device, interrupt: Interrupt) -> OrtHead:
    """Load the head at `path`.

    Raises:
        MissingPackage: onnxruntime is not installed.
        ModelFileError: the file is no head, or damaged.
    """
    bindings()
    described, threads = read_head(path), device.threads or physical_cores()
    if described.kind == OrtEagle.kind:
        return OrtEagle(described, threads, interrupt)
    return OrtStateHead(described, threads)


class OrtHead:
    """The weights of a head that reads states of its target after the final norm (`FINAL`).

    It is a `Model` of which there are no sessions.
    """

    holds_head = True
    notices: Sequence[str] = ()

    def __init__(self, described: DescribedHead, threads: int) -> None:
        self.path, self.kind = described.path, described.kind
        self.width, self.vocab = described.width, described.target_tokens
        self.description = described.summary
        self.weights = sampled(described.path)
        self.sampling: dict[str, float] = {}
        self.trained_context = 1 << 30  # it has no positions
        self._described = described
        options = bindings().SessionOptions()
        options.log_severity_level = _QUIET
        options.intra_op_num_threads = 1 if described.parameters <= _SMALL else threads
        options.inter_op_num_threads = 1
        options.add_session_config_entry("session.force_spinning_stop", "1")
        options.add_session_config_entry(*UNSATURATED)
        try:
            self._session: Any = bindings().InferenceSession(
                str(described.path), options, ["CPUExecutionProvider"], enable_fallback=0
            )
        except Exception as error:
            reason = " ".join(str(error).split())
            raise ModelFileError(f"{described.path} cannot be loaded: {reason}; convert the head again") from error

    @property
    def vocabulary(self) -> Any:
        """It has none of its own."""
        raise ModelFileError(_alone(self.path))

    def session(self, context: int, interrupt: Interrupt | None = None) -> Session:  # noqa: ARG002 - a model's
        """There are none."""
        raise ModelFileError(_alone(self.path))

    def require_fit(self, vocabulary: Labels) -> None:
        """ModelError unless a target with this vocabulary may be the one that the head was made for."""
        if not is_same(self._described.vocabulary, vocabulary):
            raise ModelError(
                f"{self.path} is a head for {self._described.target} with {self.vocab} tokens, whose vocabulary is not "
                f"that of this model with {vocabulary.size}; convert a head for this model with `edgespec convert`"
            )

    def require_width(self, width: int) -> None:
        """ModelError unless it reads states of this many numbers."""
        if width != self.width:
            raise ModelError(
                f"{self.path} is a head for {self._described.target}, whose states have {self.width} numbers, and not "
                f"{width} as those of this model; convert a head for this model with `edgespec convert`"
            )

    def close(self) -> None:
        """Free the weights."""
        self._session = None

    def _open(self) -> Any:
        """The session of onnxruntime. Raises ClosedError."""
        if self._session is None:
            raise ClosedError(f"{self.description} is closed; load it again")
        return self._session


class OrtStateHead(OrtHead):
    """Heads that guess several places from one state; a `StateHead`."""

    def __init__(self, described: DescribedHead, threads: int) -> None:
        super().__init__(described, threads)
        self.heads = described.heads

    def guesses(self, state: Floats) -> tuple[Ints, Floats]:
        """The likeliest tokens at successive places and the logarithms of their probabilities, both [heads, n].

        Args:
            state: of the token before the last committed one, float32 [width].

        Raises:
            EngineError: the pass failed.
            ClosedError: it was closed.
        """
        session = self._open()
        try:
            tokens, logs = session.run(("tokens", "logs"), {"hidden": state.reshape(1, -1)})
        except Exception as error:
            reason = " ".join(str(error).split())
            raise EngineError(
                f"ONNX Runtime could not compute the head {self.path}: {reason}; leave its drafter out"
            ) from error
        return np.asarray(tokens), np.asarray(logs)


class OrtEagle(OrtHead):
    """A head of EAGLE-1 or 2; `HeadWeights`."""

    kind = "eagle"
    head_drafter = kind  #: the name of the drafter

    def __init__(self, described: DescribedHead, threads: int, interrupt: Interrupt) -> None:
        super().__init__(described, threads)
        self._interrupt = interrupt

    def head(self, target: Session, interrupt: Interrupt | None = None) -> EagleHead:
        """The head over a session of its target; see `HeadWeights`."""
        if not isinstance(target, HiddenRows):
            raise ModelFileError(f"{self.path} reads states of its target, and this engine gives none; leave it out")
        self.require_width(target.layer_width or self.width)
        head = EagleHead(self._open(), self._described, target.context, interrupt or self._interrupt)
        target.follow((FINAL,), head)
        return head


def _alone(path: Path) -> str:
    return (
        f"{path} holds a head without its model, and drafts for that only; give the model, and this file with --draft"
    )
