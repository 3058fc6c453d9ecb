"""The protocols of an inference engine, and `open_model`, which selects the engine for a file.

A new engine is a module here with a function `open_model(path, device, interrupt)`, its name in `_MODULES` and
`device.BACKENDS`, and the suffix of its files in `_SUFFIXES`.
"""

from __future__ import annotations

import hashlib
import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import numpy as np

from ..errors import EngineError, ModelFileError, VocabularyMismatch
from ..types import Floats
from .device import Device
from .interrupt import Interrupt

__all__ = [
    "Device",
    "Interrupt",
    "Labels",
    "Model",
    "Pieces",
    "Session",
    "Vocabulary",
    "common_prefix",
    "context_length",
    "fingerprint",
    "open_model",
    "require_numbers",
    "require_same_tokens",
    "tokens_up_to",
]


class Pieces(Protocol):
    """What tokens add to a text, and which of them end it."""

    def token_bytes(self, token: int) -> bytes:
        """What `token` adds to the text: UTF-8, possibly cut inside a character; empty for special tokens."""
        ...

    def is_eog(self, token: int) -> bool:
        """Whether `token` ends the model's turn."""
        ...


class Labels(Protocol):
    """The tokens of a model as far as it takes to compare them with another's."""

    @property
    def size(self) -> int:
        """How many there are."""
        ...

    def label(self, token: int) -> str:
        """How the vocabulary itself writes `token`; equal labels mean equal tokens."""
        ...


class Vocabulary(Pieces, Labels, Protocol):
    """The tokens of a model, and text to tokens and back."""

    bos: int | None
    #: What ends a turn or a text, by the model's own settings; chat templates write it after past answers.
    eos: int | None
    #: The model's chat template in Jinja, where it has one. Bytes that are no UTF-8 are lone surrogates in it.
    template: str | None

    def tokenize(self, text: str, *, special: bool = False, start: bool = False) -> list[int]:
        """The tokens of `text`.

        Args:
            special: whether text that spells a special token becomes one. Never for what a user typed.
            start: whether this begins a sequence, so that models that ask for it get their bos.
        """
        ...

    def specials(self) -> Sequence[str]:
        """The texts of the special tokens, which user text must not be able to spell."""
        ...


class Session(Protocol):
    """One sequence in one loaded model: its tokens, and the KV cache that holds them."""

    vocab: int
    #: How many tokens the cache can hold.
    context: int
    #: How many tokens of the last decode a rollback may take back, once before the next one and never its first; 0 for
    #: none, None where any rollback may go anywhere. Back to an empty cache is always possible.
    reach: int | None
    can_tree: bool
    #: The most leaves that a tree may have; 0 where it takes none.
    leaves: int
    #: The most tokens that one decode takes.
    widest: int
    #: What determines the price of a pass: file, device, threads, engine version.
    identity: str

    @property
    def tokens(self) -> Sequence[int]:
        """What the cache holds, in order. A tree is beside it until a rollback says which nodes are kept."""
        ...

    def prefill(self, tokens: Sequence[int]) -> None:
        """Append `tokens` to the cache, in chunks, without logits.

        Raises:
            ContextOverflow: more tokens than there is room for; nothing was appended.
            Interrupted: the interrupt was set; the cache holds what it held before, or nothing if its `reach` is short.
        """
        ...

    def decode(self, tokens: Sequence[int], tree: Sequence[int] | None = None) -> Floats:
        """Append `tokens` and return the logits after each, float32 [n, vocab], valid until the next call.

        `tree[i]` is the parent of token i, -1 for the cache: each token sees the cache, its ancestors, itself.
        Parents come before children. A tree takes room for all its tokens; unless the next call is the rollback
        that keeps a path of it, it is forgotten. A tree that is a chain is appended like one.

        Raises:
            EngineError: more than `widest` tokens or `leaves` leaves, or a tree where there are none.
            ContextOverflow, Interrupted: as `prefill` does.
        """
        ...

    def rollback(self, length: int, keep: Sequence[int] = ()) -> None:
        """Forget all but the first `length` tokens and, after them, the nodes `keep` of the last decode.

        `keep` is a path from its root down, and `length` then where that decode began.

        Raises:
            RollbackError: the cache cannot go back there (see `reach`). It never pretends.
        """
        ...

    def close(self) -> None:
        """Free the cache; further use is an error."""
        ...


class Model(Protocol):
    """Loaded weights."""

    #: The longest context the model was trained for, in tokens.
    trained_context: int
    #: A short human description: name, size, quantization.
    description: str
    #: The model's own default sampling, as far as its file states one: `Sampling` fields by name.
    sampling: dict[str, float]
    #: What the model's text depends on, so that two fine-tunes differ and one model is the same with other threads, on
    #: another device or with a newer engine. Empty where that is not known: then nothing is kept of its drafters.
    weights: str

    @property
    def notices(self) -> Sequence[str]:
        """What the user should know: where it is not as asked for."""
        ...

    @property
    def vocabulary(self) -> Vocabulary:
        """Its tokens."""
        ...

    def session(self, context: int, interrupt: Interrupt | None = None) -> Session:
        """A new sequence with room for `context` tokens, stopped by `interrupt`, by default the model's own."""
        ...

    def close(self) -> None:
        """Free the weights; sessions must be closed before."""
        ...


_MODULES = {"llama": "llama", "onnx": "ort"}
_SUFFIXES = {".gguf": "llama", ".onnx": "onnx"}
_DEFAULT_CONTEXT = 4096
_PADDING = 1024  # unused tokens by which members of one family differ in size; Qwen2's differ by 384

_CHARACTERS = 16  # more than tokens of most texts have on the average

_WAYS_OUT = (
    "use a draft model of the target's own family, or name this one with --draft to let it draft through text, "
    "or take --draft none"
)


def open_model(path: Path, device: Device, interrupt: Interrupt) -> Model:
    """Load the model at `path` with the engine for its suffix; of a folder, the model in it.

    Raises:
        ModelFileError: missing, truncated, in no format that an engine reads, or not of the backend asked for.
        MissingPackage: that engine is not installed.
    """
    try:
        found = _models_at(path)
    except OSError as error:  # a name too long, a folder that may not be searched
        raise ModelFileError(f"{path} cannot be opened: {error.strerror}; give a file that can be read") from error
    backend, file = _chosen(path, found, device.backend)
    model: Model = importlib.import_module(f".{_MODULES[backend]}", __name__).open_model(file, device, interrupt)
    return model


def _models_at(path: Path) -> list[tuple[str, Path]]:
    """The models that `path` names, each with its backend: one of a file, those in it of a folder."""
    if not path.exists():
        raise ModelFileError(f"no model at {path}; give the path of a {' or '.join(_SUFFIXES)} file")
    if not path.is_file() and not path.is_dir():  # to open a pipe would wait for its other end
        raise ModelFileError(f"{path} is a pipe or a device, not a file; give the path of a model file")
    files = sorted(path.iterdir()) if path.is_dir() else [path]
    return [
        (backend, file)
        for file in files
        if (backend := _SUFFIXES.get(file.suffix.lower())) is not None and file.is_file()
    ]


def _chosen(path: Path, found: Sequence[tuple[str, Path]], backend: str) -> tuple[str, Path]:
    if not found:
        raise ModelFileError(
            f"{path} is not a model file that edgespec opens ({', '.join(_SUFFIXES)}); "
            "convert a Hugging Face folder with `edgespec convert`"
        )
    fitting = [each for each in found if backend in ("auto", each[0])]
    if not fitting:
        raise ModelFileError(
            f"{path} is a model for the backend {found[0][0]}, not for {backend}; leave --backend out, or convert the "
            "checkpoint into the other format"
        )
    if len(fitting) > 1:
        names = ", ".join(file.name for _, file in fitting)
        raise ModelFileError(f"{path} holds several models ({names}); give the path of one, or --backend")
    return fitting[0]


def context_length(device: Device, model: Model) -> int:
    """The context to open: what was asked for, or a default that the model was trained for."""
    return device.context or min(model.trained_context, _DEFAULT_CONTEXT)


def common_prefix(left: Sequence[int], right: Sequence[int]) -> int:
    """How many leading tokens two sequences share."""
    length = min(len(left), len(right))
    if list(left[:length]) == list(right[:length]):
        return length
    return next(i for i in range(length) if left[i] != right[i])


def tokens_up_to(
    vocabulary: Vocabulary, text: str, most: int, *, special: bool = False, start: bool = False
) -> list[int]:
    """The tokens of `text`, or only those of its beginning where these are more than `most` already.

    Tokenizing takes up to 300 bytes of memory for each character, so that what does not fit the context by far must
    not be tokenized whole. A beginning may have a few more tokens than the whole text begins with, since a word may be
    cut: leave a margin in `most`.
    """
    length = _CHARACTERS * most
    while length < len(text):
        tokens = vocabulary.tokenize(text[:length], special=special, start=start)
        if len(tokens) > most:
            return tokens
        length *= 4
    return vocabulary.tokenize(text, special=special, start=start)


def require_numbers(rows: Floats, whose: str) -> Floats:
    """`rows` of logits, unless what was computed is no number: that spreads to all tokens, so one column shows it.

    Raises:
        EngineError: logits are NaN or infinite.
    """
    if not bool((rows[:, 0] < np.inf).all()):  # -inf is a token that cannot be
        raise EngineError(
            f"the {whose} model computes no numbers: its weights are damaged, or too large for their quantization; "
            "fetch or convert it again"
        )
    return rows


def fingerprint(vocabulary: Vocabulary) -> str:
    """Names a vocabulary by all its tokens."""
    labels = "\0".join(vocabulary.label(token) for token in range(vocabulary.size))
    return hashlib.sha256(labels.encode("utf-8", "replace")).hexdigest()


def require_same_tokens(target: Labels, draft: Labels) -> None:
    """Check token by token that a draft model's vocabulary is the target's.

    Models of one family pad their vocabularies to different sizes; tokens that only one has are never drafted, so
    sizes may differ where every shared token is the same and nearly all are shared.

    Raises:
        VocabularyMismatch: names the first token that differs.
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
