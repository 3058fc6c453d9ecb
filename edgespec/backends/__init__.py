"""The protocols of an inference engine, and `open_model`, which selects the engine for a file.

A new engine is a module here with a function `open_model(path, device, interrupt)`, its name in `_MODULES` and
`device.BACKENDS`, and at the suffix of its files in `model_files.ENGINES`.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Protocol

import numpy as np

from ..errors import EngineError, ModelFileError, OptionError
from ..types import Floats
from .device import Device
from .engine_choice import TITLES, EngineChoice, installed, keep_choice, recall_choice
from .heads import FittedHead, Head, HeadWeights, PartOfTarget, StateHead
from .interrupt import Interrupt
from .machine import OtherPrograms
from .model_files import engines, find_model, state_head_kind
from .parallel import parallel_of
from .session import HiddenRows, KeepingSession, Session
from .tap import FINAL, Listener, Wanted
from .vocabulary import Labels, Pieces, Vocabulary, fingerprint, require_same_tokens, tokens_up_to

__all__ = [
    "FINAL",
    "MOST_OWED",
    "TITLES",
    "Device",
    "EngineChoice",
    "FittedHead",
    "Head",
    "HeadWeights",
    "HiddenRows",
    "Interrupt",
    "KeepingSession",
    "Labels",
    "Listener",
    "Model",
    "OtherPrograms",
    "PartOfTarget",
    "Pieces",
    "Session",
    "StateHead",
    "Vocabulary",
    "Wanted",
    "common_prefix",
    "context_length",
    "engines",
    "fingerprint",
    "installed",
    "keep_choice",
    "open_model",
    "parallel_of",
    "recall_choice",
    "require_numbers",
    "require_same_tokens",
    "state_head_kind",
    "tokens_up_to",
]


class Model(Protocol):
    """Loaded weights."""

    #: The longest context the model was trained for, in tokens.
    trained_context: int
    #: A short description for users: name, size, quantization.
    description: str
    #: The default sampling that the model's file recommends: `Sampling` fields by name.
    sampling: dict[str, float]
    #: A key for the weights: different for two fine-tunes, but the same for other threads, devices and engine versions.
    #: If empty, the calibration of its drafters is not kept.
    weights: str

    @property
    def notices(self) -> Sequence[str]:
        """Messages for the user: where it is not loaded as requested."""
        ...

    @property
    def vocabulary(self) -> Vocabulary:
        """Its tokens."""
        ...

    def session(self, context: int, interrupt: Interrupt | None = None) -> Session:
        """A new sequence with room for `context` tokens, stopped by `interrupt`, by default the model's own."""
        ...

    def close(self) -> None:
        """Free the weights. Sessions must be closed before."""
        ...


MOST_OWED = 16  #: tokens that a decode computes again at most; more are computed in passes of their own before it
_MODULES = {"llama": "llama", "onnx": "ort", "openvino": "openvino", "head": "ort_head", "workers": "llama_remote"}
_DEFAULT_CONTEXT = 4096


def open_model(path: Path, device: Device, interrupt: Interrupt) -> Model:
    """Load the model at `path`, a file or a folder with one model, with the engine for its suffix.

    Raises:
        ModelFileError: it is missing, truncated, in an unknown format, or not for the requested backend.
        MissingPackage: that engine is not installed.
    """
    backend, file = ("head", path) if state_head_kind(path) else find_model(path, device.backend)
    if device.rpc:
        if backend != "llama":
            raise OptionError(f"workers compute GGUF files, and {file} is none; convert it to one, or leave rpc out")
        backend = "workers"
    model: Model = importlib.import_module(f".{_MODULES[backend]}", __name__).open_model(file, device, interrupt)
    return model


def exit_layer(path: Path) -> int:
    """How many first layers of the model at `path`, a file or a folder, draft for it in its own session; 0 if none do,
    as for models that are not ONNX, and for those that cannot be read."""
    try:
        file = find_model(path, "auto")[1]
        if file.suffix.lower() != ".onnx" or find_spec("google.protobuf") is None:
            return 0
        from .onnx_file import read  # noqa: PLC0415 - needs protobuf

        return read(file).exit_layer
    except ModelFileError:
        return 0


def context_length(device: Device, model: Model) -> int:
    """The context in tokens: the requested one, or a default that the model was trained for."""
    return device.context or min(model.trained_context, _DEFAULT_CONTEXT)


def common_prefix(left: Sequence[int], right: Sequence[int]) -> int:
    """The length of the longest common prefix of two sequences."""
    length = min(len(left), len(right))
    if list(left[:length]) == list(right[:length]):
        return length
    return next(i for i in range(length) if left[i] != right[i])


def require_numbers(rows: Floats, whose: str) -> Floats:
    """`rows` of logits, float32 [n, vocab], if they are numbers. NaN spreads to all tokens: one column is tested.

    Args:
        whose: "target" or "draft", for the message.

    Raises:
        EngineError: logits are NaN or infinite.
    """
    if not bool((rows[:, 0] < np.inf).all()):  # -inf is allowed: a banned token
        raise EngineError(
            f"the {whose} model computes no numbers: its weights are damaged, or too large for their quantization; "
            "fetch or convert it again"
        )
    return rows
