"""llama.cpp, by the low-level bindings of llama-cpp-python.

Its `Llama` class is not used: it hides rollback, and its speculative path outgrows its score buffer.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from ..errors import (
    ClosedError,
    ContextOverflow,
    EngineError,
    Interrupted,
    ModelFileError,
    OptionError,
    RollbackError,
)
from ..llamacpp import bindings, captured_errors
from ..types import Floats
from . import Device, Interrupt

_CHUNK = 512  # tokens of one prefill pass; llama.cpp's own default
_ABORTED = 2
_SAMPLING_KEYS = {
    "temp": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "penalty_repeat": "repetition_penalty",
}


def open_model(path: Path, device: Device, interrupt: Interrupt) -> LlamaModel:
    """Load a GGUF file.

    Raises:
        MissingPackage: llama-cpp-python is not installed.
        ModelFileError: the file is missing, truncated or no GGUF; the message quotes llama.cpp's loader.
    """
    try:
        with path.open("rb") as file:
            magic = file.read(4)
    except OSError as error:
        raise ModelFileError(f"{path} cannot be opened: {error.strerror}; give a file that can be read") from error
    if magic != b"GGUF":
        raise ModelFileError(
            f"{path} is not a GGUF file: it begins with {magic!r}, expected b'GGUF'; fetch it again, or convert a "
            "Hugging Face folder with `edgespec convert`"
        )
    return LlamaModel(path, device, interrupt)


class LlamaVocabulary:
    """The tokens of a GGUF file."""

    def __init__(self, low: Any, model: Any) -> None:
        self._low = low
        self._handle = low.llama_model_get_vocab(model)
        self._pieces: dict[int, bytes] = {}
        self.size = int(low.llama_vocab_n_tokens(self._handle))
        bos = int(low.llama_vocab_bos(self._handle))
        self.bos = bos if bos >= 0 else None
        template = low.llama_model_chat_template(model, None)
        self.template: str | None = template.decode() if template else None

    @property
    def _vocab(self) -> Any:
        if self._handle is None:
            raise ClosedError("the model of this vocabulary is closed; load it again")
        return self._handle

    def close(self) -> None:
        """The model is freed, and this with it."""
        self._handle = None

    def tokenize(self, text: str, *, special: bool = False, start: bool = False) -> list[int]:
        encoded = text.encode("utf-8", "replace")  # lone surrogates, as pasted text may hold, have no UTF-8
        room = len(encoded) + 8
        while True:
            buffer = (self._low.llama_token * room)()
            n = self._low.llama_tokenize(self._vocab, encoded, len(encoded), buffer, room, start, special)
            if n >= 0:
                return list(buffer[:n])
            room = -n

    def piece(self, token: int) -> bytes:
        known = self._pieces.get(token)
        if known is None:
            known = self._pieces[token] = self._read_piece(token)
        return known

    def _read_piece(self, token: int) -> bytes:
        room = 64
        while True:
            buffer = ctypes.create_string_buffer(room)
            n = self._low.llama_token_to_piece(self._vocab, token, buffer, room, 0, False)
            if n >= 0:
                return buffer.raw[:n]
            room = -n

    def label(self, token: int) -> str:
        text = self._low.llama_vocab_get_text(self._vocab, token)
        return text.decode("utf-8", "replace") if text else ""

    def ends(self, token: int) -> bool:
        return bool(self._low.llama_vocab_is_eog(self._vocab, token))

    def specials(self) -> Sequence[str]:
        control = (t for t in range(self.size) if self._low.llama_vocab_is_control(self._vocab, t))
        return [label for label in map(self.label, control) if label]


class LlamaModel:
    """The weights of a GGUF file."""

    def __init__(self, path: Path, device: Device, interrupt: Interrupt) -> None:
        low = bindings()
        self._low = low
        self._interrupt = interrupt
        self._threads = device.threads or physical_cores()
        params = low.llama_model_default_params()
        params.n_gpu_layers = _gpu_layers(low, device)
        self._model = _load(low, path, params, interrupt)
        self._identity = _identity(low, path, params.n_gpu_layers)
        self.vocabulary = LlamaVocabulary(low, self._model)
        self.trained_context = int(low.llama_model_n_ctx_train(self._model))
        self.description = f"{self.metadata('general.name') or path.stem} ({self._size()})"
        stated = {field: self.metadata(f"general.sampling.{key}") for key, field in _SAMPLING_KEYS.items()}
        self.sampling = {field: float(value) for field, value in stated.items() if value is not None}

    def _size(self) -> str:
        """Parameters and quantization: 7.6B, Q4_K - Medium."""
        parameters = int(self._low.llama_model_n_params(self._model))
        size = f"{parameters / 1e9:.1f}B" if parameters >= 1e9 else f"{parameters / 1e6:.1f}M"
        kind = (_text(self._low.llama_model_desc, self._model) or "").split(maxsplit=2)  # architecture, size, type
        return f"{size}, {kind[-1]}" if kind else size

    def metadata(self, key: str) -> str | None:
        """The scalar `key` of the GGUF metadata as text, None where the file lacks it."""
        return _text(self._low.llama_model_meta_val_str, self._model, key.encode())

    def session(self, context: int) -> LlamaSession:
        return LlamaSession(self, context)

    def close(self) -> None:
        if self._model:
            self.vocabulary.close()
            self._low.llama_model_free(self._model)
            self._model = None

    def open_context(self, context: int) -> tuple[Any, Any]:
        """A llama_context of this model, and the low-level module to drive it with."""
        params = self._low.llama_context_default_params()
        params.n_ctx = context
        params.n_batch = params.n_ubatch = min(_CHUNK, context)
        params.n_threads = params.n_threads_batch = self._threads
        params.swa_full = True  # a sliding window that forgets cannot be rolled back
        params.no_perf = True
        with captured_errors() as errors:
            handle = self._low.llama_init_from_model(self._model, params)
        if not handle:
            raise EngineError(
                f"llama.cpp could not open a context of {context} tokens ({'; '.join(errors) or 'no reason given'}); "
                "a smaller --ctx needs less memory"
            )
        if (poll := _poller()) is not None:
            callback = ctypes.cast(poll, self._low.ggml_abort_callback)
            self._low.llama_set_abort_callback(handle, callback, self._interrupt.address)
        return handle, self._low

    @property
    def can_rollback(self) -> bool:
        low = self._low
        return not (low.llama_model_is_recurrent(self._model) or low.llama_model_is_hybrid(self._model))

    @property
    def identity(self) -> str:
        return f"{self._identity}|threads={self._threads}"

    @property
    def interrupt(self) -> Interrupt:
        return self._interrupt


class LlamaSession:
    """One sequence of a GGUF model."""

    can_tree = False

    def __init__(self, model: LlamaModel, context: int) -> None:
        self.vocab = model.vocabulary.size
        self.can_rollback = model.can_rollback
        self.identity = model.identity
        self._interrupt = model.interrupt
        self.widest = min(_CHUNK, context)
        self._context, self._low = model.open_context(context)
        self.context = min(context, int(self._low.llama_n_ctx(self._context)))
        self._memory = self._low.llama_get_memory(self._context)
        self._batch = self._low.llama_batch_init(min(_CHUNK, context), 0, 1)
        self._token, self._pos, self._wanted = _batch_views(self._batch, min(_CHUNK, context))
        self._held: list[int] = []
        self._last = 0  # where the last decode began
        self._rows: dict[int, Any] = {}

    @property
    def tokens(self) -> Sequence[int]:
        return self._held

    def prefill(self, tokens: Sequence[int]) -> None:
        start = len(self._held)
        self._check_room(len(tokens))
        try:
            for at in range(0, len(tokens), len(self._token)):
                self._pass(tokens[at : at + len(self._token)], logits=False)
        except (EngineError, Interrupted):
            self.rollback(start)
            raise
        self._last = len(self._held)

    def decode(self, tokens: Sequence[int], tree: Sequence[int] | None = None) -> Floats:
        if tree is not None and any(parent != node - 1 for node, parent in enumerate(tree)):
            raise EngineError("this llama.cpp session decodes chains only; ask can_tree before giving it a tree")
        if len(tokens) > len(self._token):
            raise EngineError(
                f"one decode takes at most {len(self._token)} tokens, not {len(tokens)}; prefill the rest"
            )
        self._check_room(len(tokens))
        self._last = len(self._held)
        self._pass(tokens, logits=True)
        return self._logits(len(tokens))

    def rollback(self, length: int, keep: Sequence[int] = ()) -> None:
        length = self._kept_length(length, keep)
        if length == len(self._held):
            return
        if length and not self.can_rollback:
            raise RollbackError("this model's recurrent state cannot go back; only plain decoding from scratch can")
        if not self._low.llama_memory_seq_rm(self._memory, 0, length, -1):
            raise RollbackError(f"llama.cpp could not go back from {len(self._held)} to {length} tokens")
        del self._held[length:]

    def close(self) -> None:
        if self._context:
            self._low.llama_batch_free(self._batch)
            self._low.llama_free(self._context)
            self._context = None

    def _kept_length(self, length: int, keep: Sequence[int]) -> int:
        """A chain keeps its first nodes; then keeping nodes is only a later place to cut."""
        if not 0 <= length <= len(self._held):
            raise RollbackError(f"cannot go back to {length} tokens: {len(self._held)} are held")
        if not keep:
            return length
        if length != self._last or list(keep) != list(range(len(keep))) or length + len(keep) > len(self._held):
            raise RollbackError(
                f"cannot keep nodes {list(keep)} after {length} tokens: not a prefix of the last decode"
            )
        return length + len(keep)

    def _check_room(self, n: int) -> None:
        if len(self._held) + n > self.context:
            raise ContextOverflow(
                f"{len(self._held)} + {n} tokens do not fit the context of {self.context}; a larger --ctx holds more"
            )

    def _pass(self, tokens: Sequence[int], *, logits: bool) -> None:
        n, start = len(tokens), len(self._held)
        if self._context is None:
            raise ClosedError("this session is closed; open another")
        if self._interrupt.is_set:
            raise Interrupted
        self._token[:n] = tokens
        self._pos[:n] = np.arange(start, start + n)
        self._wanted[:n] = logits
        self._batch.n_tokens = n
        status = self._low.llama_decode(self._context, self._batch)
        if status == 0:
            self._held.extend(tokens)
            return
        self._low.llama_memory_seq_rm(self._memory, 0, start, -1)
        if status == _ABORTED:
            raise Interrupted
        raise EngineError(f"llama.cpp could not decode {n} tokens after {start} (status {status})")

    def _logits(self, n: int) -> Floats:
        """llama.cpp's own buffer, [n, vocab], not copied."""
        first = ctypes.addressof(self._low.llama_get_logits(self._context).contents)
        if (kind := self._rows.get(n)) is None:
            kind = self._rows[n] = ctypes.c_float * (n * self.vocab)
        buffer: Any = kind.from_address(first)
        return np.frombuffer(buffer, dtype=np.float32).reshape(n, self.vocab)


def _gpu_layers(low: Any, device: Device) -> int:
    if low.llama_supports_gpu_offload():
        return device.gpu_layers
    if device.gpu_layers > 0:
        raise OptionError(
            f"gpu_layers is {device.gpu_layers}, but this llama-cpp-python was built for the CPU alone; reinstall it "
            'with CMAKE_ARGS="-DGGML_CUDA=on" (or Metal, Vulkan), or leave gpu_layers out'
        )
    return 0


def physical_cores() -> int:
    """Cores this process may use, hyper-threads not counted twice."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(allowed, psutil.cpu_count(logical=False) or allowed))


def _batch_views(batch: Any, size: int) -> tuple[Any, Any, Any]:
    """NumPy views of a llama_batch's tokens, positions and output flags; its sequence ids are filled in for good."""
    as_array = np.ctypeslib.as_array
    as_array(batch.n_seq_id, (size,))[:] = 1
    for i in range(size):
        batch.seq_id[i][0] = 0
    return as_array(batch.token, (size,)), as_array(batch.pos, (size,)), as_array(batch.logits, (size,))


def _load(low: Any, path: Path, params: Any, interrupt: Interrupt) -> Any:
    @low.llama_progress_callback  # type: ignore[untyped-decorator]
    def go_on(_fraction: float, _data: object) -> bool:
        return not interrupt.is_set

    params.progress_callback = go_on
    with captured_errors() as errors:
        model = low.llama_model_load_from_file(str(path).encode(), params)
    if model:
        return model
    if interrupt.is_set:
        raise Interrupted
    reason = "; ".join(errors) or "llama.cpp gave no reason"
    raise ModelFileError(f"{path} cannot be loaded: {reason}; it may be truncated: download or convert it again")


def _identity(low: Any, path: Path, gpu_layers: int) -> str:
    """Names what a pass's price depends on. The head of a GGUF holds its shapes and types; weights do not matter."""
    with path.open("rb") as file:
        head = hashlib.sha256(file.read(1 << 20))
    head.update(str(path.stat().st_size).encode())
    import llama_cpp  # noqa: PLC0415

    system = low.llama_print_system_info().decode()
    device = f"gpu_layers={gpu_layers}" if gpu_layers else "cpu"
    return f"{head.hexdigest()}|{device}|{platform.node()}|llama_cpp {llama_cpp.__version__}|{system}"


def _text(function: Any, *arguments: Any) -> str | None:
    """Call a llama.cpp function that fills a text buffer; None where it has nothing to say."""
    room = 256
    while True:
        buffer = ctypes.create_string_buffer(room)
        n = function(*arguments, buffer, room)
        if n < 0:
            return None
        if n < room:
            return buffer.value.decode("utf-8", "replace")
        room = n + 1


@cache
def _poller() -> Any:
    """A native function that llama.cpp polls between graph nodes: is the interrupt's flag set?

    C's strlen: the flag is a string of length 0 or 1, which is just what the callback must return. A Python
    callback would take the interpreter lock hundreds of times a pass.
    """
    try:
        library = ctypes.CDLL("msvcrt") if platform.system() == "Windows" else ctypes.CDLL(None)
        return library.strlen
    except (OSError, AttributeError):  # pragma: no cover - cancelling then waits for the pass to end
        return None
