"""The protocols of an inference engine, and `open_model`, which selects the engine for a file.

A new engine is a module here with a function `open_model(path, device, interrupt)`, its name in `_MODULES` and
`device.BACKENDS`, and at the suffix of its files in `model_files.ENGINES`.
"""

from __future__ import annotations

import hashlib
import importlib
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np

from ..errors import EngineError, ModelFileError, OptionError, VocabularyMismatch
from ..types import Floats, Ints
from .device import Device
from .engine_choice import TITLES, EngineChoice, installed, keep_choice, recall_choice
from .interrupt import Interrupt
from .machine import OtherPrograms
from .model_files import engines, find_model, state_head_kind
from .parallel import parallel_of
from .tap import FINAL, Listener, Wanted

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


class Pieces(Protocol):
    """The bytes of tokens, and which tokens end a text."""

    def token_bytes(self, token: int) -> bytes:
        """The UTF-8 bytes of `token`, possibly an incomplete character; empty for special tokens."""
        ...

    def is_eog(self, token: int) -> bool:
        """Whether `token` is an end-of-generation token."""
        ...


class Labels(Protocol):
    """The tokens of a model by their labels, to compare two vocabularies."""

    @property
    def size(self) -> int:
        """The number of tokens."""
        ...

    def label(self, token: int) -> str:
        """The vocabulary's own string for `token`; equal labels mean equal tokens."""
        ...


class Vocabulary(Pieces, Labels, Protocol):
    """The tokens of a model, and conversion between text and tokens."""

    bos: int | None
    #: The end-of-sequence token by the model's own settings; chat templates write it after earlier answers.
    eos: int | None
    #: The model's chat template in Jinja, None if it has none. Bytes that are not UTF-8 are lone surrogates in it.
    template: str | None

    def tokenize(self, text: str, *, special: bool = False, start: bool = False) -> list[int]:
        """The tokens of `text`.

        Args:
            special: whether the text of a special token becomes that token. Must be False for text of a user.
            start: whether this begins a sequence, so that a bos is added for models that require it.
        """
        ...

    def specials(self) -> Sequence[str]:
        """The texts of the special tokens; text of a user must never become one of these tokens."""
        ...


class Session(Protocol):
    """One sequence of a loaded model: its tokens and their KV cache. `edgespec.testing.check_model` tests sessions."""

    #: The width of a row of logits.
    vocab: int
    #: The most tokens that the cache holds.
    context: int
    #: The most tokens of one decode that a rollback should drop, None for any number: dropping more is possible, but
    #: may leave the whole text to be computed again. The first token of a decode should stay.
    reach: int | None
    #: Whether a rollback that drops a part of the last decode leaves the rest of it, and what was owed before it, to be
    #: computed again; see `owed`. If False, a rollback within `reach` costs nothing.
    replays: bool
    #: Whether `decode` takes trees.
    can_tree: bool
    #: The most leaves of a tree; 0 without trees.
    leaves: int
    #: The most tokens of one decode.
    widest: int
    #: A key for the price of a pass: file, device, threads, engine version.
    identity: str

    @property
    def tokens(self) -> Sequence[int]:
        """The tokens in the cache, in order, without a tree that no rollback has settled."""
        ...

    @property
    def owed(self) -> int:
        """How many of the last `tokens` must be computed again, because a rollback dropped their results: the next pass
        computes them before its own tokens, and is that much wider. 0 for engines that can drop single tokens."""
        ...

    def prefill(self, tokens: Sequence[int]) -> None:
        """Append `tokens` to the cache, in chunks, without logits. Nothing is owed afterwards, also without `tokens`.

        Raises:
            ContextOverflow: the tokens do not fit; nothing was appended.
            Interrupted: the interrupt was set; `tokens` are unchanged, but more of them may be owed.
        """
        ...

    def decode(self, tokens: Sequence[int], tree: Sequence[int] | None = None) -> Floats:
        """Append `tokens` and return the logits after each, float32 [n, vocab], valid until the next call.

        Args:
            tree: the parent of each token, -1 for the cache; parents come before children. Each token attends to the
                cache, its ancestors and itself. A tree needs room for all its tokens. Unless the next call is the
                rollback that keeps a path of it, it is dropped. A tree that is a chain is appended as a chain.

        Raises:
            EngineError: more than `widest` tokens or `leaves` leaves, or a tree if `can_tree` is False.
            ContextOverflow, Interrupted: as `prefill`.
        """
        ...

    def rollback(self, length: int, keep: Sequence[int] = ()) -> None:
        """Drop all but the first `length` tokens and, after them, the nodes `keep` of the last decode.

        It also says that these tokens stay for now, even if none are dropped: a session that must save a state to go
        back to saves that of this length. Call it after every decode whose tokens were judged.

        Args:
            length: tokens to keep; with `keep`, the length at which that decode began.
            keep: a path of the last decode, from the root down.

        Raises:
            RollbackError: there is no such length or path.
        """
        ...

    def close(self) -> None:
        """Free the cache. Further use raises ClosedError."""
        ...


@runtime_checkable
class HiddenRows(Protocol):
    """Further members of a session that gives the hidden states of its tokens."""

    #: Numbers of a row between layers, and how many layers there are; 0 where not known.
    layer_width: int
    layers: int

    def follow(self, layers: Sequence[int], listener: Listener, wanted: Wanted = Wanted.ALL) -> None:
        """Give `listener` the hidden rows of tokens that stay, prompts included; the session must be empty.

        A rollback says what stays of a decode; where the next call is another, all of a chain stays and nothing of a
        tree. After a rollback beyond the last decode, the row of the last token left is computed again by the next
        pass (`Session.owed`) if all are wanted.

        Args:
            layers: the rows of a token are the inputs of these layers, side by side, from 0 as llama.cpp counts them;
                `FINAL` is the state from which logits are computed.
            wanted: of which tokens.

        Raises:
            OptionError: a layer whose rows this engine does not give for this model; `exact` was requested.
            MissingPackage: the installed version of the engine does not give them.
            EngineError: the engine gives no rows; the session holds tokens.
        """
        ...


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


class Head(Protocol):
    """A head of multi-token prediction over one session of its target, whose hidden states it reads."""

    #: The width of a row of logits, that of the target.
    vocab: int
    #: The most tokens of text.
    context: int

    def follows(self, context: Sequence[int]) -> bool:
        """Whether it can draft after `context`, of which the target holds all tokens but the last one."""
        ...

    def logits(self, last: int, path: Sequence[int]) -> Floats:
        """The logits after what the target holds, the token `last` and `path`, float32 [vocab], valid until the next
        call. Call it only if the head `follows` that context."""
        ...

    def close(self) -> None:
        """Free its cache; the session of the target is closed after it."""
        ...


@runtime_checkable
class HeadWeights(Protocol):
    """Further members of a model that may hold a head: its own, or, in a file without a model, another's."""

    @property
    def holds_head(self) -> bool:
        """Whether a head was loaded."""
        ...

    @property
    def head_drafter(self) -> str:
        """The name of the drafter that uses the head: "mtp", "eagle", "eagle3" or "exit"."""
        ...

    def head(self, target: Session, interrupt: Interrupt | None = None) -> Head:
        """The head over a session of its target that holds no tokens yet, and is closed after the head.

        Args:
            interrupt: stops its passes; by default that of the target's session or of its own model.

        Raises:
            ModelError: the head is not one of this target.
            MissingPackage: the engine that is installed cannot run it.
            EngineError: the engine could not open it.
        """
        ...


@runtime_checkable
class FittedHead(Protocol):
    """Weights of a head that has no vocabulary of its own."""

    #: What the drafter is called.
    kind: str

    def require_fit(self, vocabulary: Labels) -> None:
        """ModelError unless a target with this vocabulary may be the one that the head was made for."""
        ...


@runtime_checkable
class StateHead(FittedHead, Protocol):
    """Weights of heads that guess several places from one final state of their target (`FINAL`)."""

    #: Guesses of a pass at successive places.
    heads: int
    #: Numbers of a state.
    width: int

    def require_width(self, width: int) -> None:
        """ModelError unless they read states of this many numbers."""
        ...

    def guesses(self, state: Floats) -> tuple[Ints, Floats]:
        """The likeliest tokens at successive places after a token, and the logarithms of their probabilities, both
        [heads, n].

        Args:
            state: that from which the target chose this token, float32 [width].
        """
        ...


@runtime_checkable
class PartOfTarget(Protocol):
    """A further member of a model that may be made of layers of its target."""

    @property
    def is_part(self) -> bool:
        """Whether it is a draft model of that kind."""
        ...


MOST_OWED = 16  #: tokens that a decode computes again at most; more are computed in passes of their own before it
_MODULES = {"llama": "llama", "onnx": "ort", "openvino": "openvino", "head": "ort_head", "workers": "llama_remote"}
_DEFAULT_CONTEXT = 4096
_PADDING = 1024  # the most padding tokens by which vocabularies of one family may differ; Qwen2's differ by 384

_CHARACTERS = 16  # more characters than an average token of most texts has

_WAYS_OUT = (
    "use a draft model of the target's own family, or name this one with --draft to let it draft through text, "
    "or take --draft none"
)


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


def tokens_up_to(
    vocabulary: Vocabulary, text: str, most: int, *, special: bool = False, start: bool = False
) -> list[int]:
    """The tokens of `text`, or only those of a prefix of it if they are already more than `most`.

    Tokenizing takes up to 300 bytes of memory per character, so a text that exceeds the context by far must not be
    tokenized whole. The prefix may end inside a word and therefore have a few more tokens: leave a margin in `most`.
    """
    length = _CHARACTERS * most
    while length < len(text):
        tokens = vocabulary.tokenize(text[:length], special=special, start=start)
        if len(tokens) > most:
            return tokens
        length *= 4
    return vocabulary.tokenize(text, special=special, start=start)


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


def fingerprint(vocabulary: Vocabulary) -> str:
    """A key for a vocabulary: a hash of the labels of all tokens."""
    labels = "\0".join(vocabulary.label(token) for token in range(vocabulary.size))
    return hashlib.sha256(labels.encode("utf-8", "replace")).hexdigest()


def require_same_tokens(target: Labels, draft: Labels) -> None:
    """Check that a draft model has the target's vocabulary, token by token.

    Models of one family pad their vocabularies to different sizes. Tokens that only one model has are never drafted, so
    the sizes may differ by at most 1024 tokens if all shared tokens are equal.

    Raises:
        VocabularyMismatch: the vocabularies differ; the message names the first token that does.
    """
    shared = min(target.size, draft.size)
    for token in range(shared):
        if (ours := target.label(token)) != (theirs := draft.label(token)):
            raise VocabularyMismatch(
                f"target and draft have different vocabularies: token {token} is {ours!r} in the target and "
                f"{theirs!r} in the draft; {_WAYS_OUT}"
            )
    if abs(target.size - draft.size) > _PADDING:
        raise VocabularyMismatch(
            f"target and draft have different vocabularies: {target.size} and {draft.size} tokens, so token {shared} "
            f"exists in one only; {_WAYS_OUT}"
        )
