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

from ..errors import ClosedError, EngineError, Interrupted, ModelFileError, OptionError
from ..sampling import stated
from ..storage.checksum import sampled
from . import Device, Interrupt
from .amx import uses_amx
from .llama_file import check
from .llama_library import bindings, captured_errors, require_no_fork
from .llama_session import LlamaSession, Opened
from .machine import physical_cores
from .token_ids import checked_tokens

_CHUNK = 512  # tokens of one prefill pass; llama.cpp's own default
_STEP = 256  # llama.cpp rounds a context up to it, but only after it has made the batch no longer than was asked
#: Branches of a tree. More cost every pass: llama.cpp compares all pairs of sequences, 4 us for 64 and 40 for 256.
_LEAVES = 64
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
        ModelFileError: the file is missing, truncated, malformed or no GGUF; the message may quote llama.cpp's loader.
        EngineError: this process was forked from one that used llama.cpp.
    """
    require_no_fork()
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
    check(path)
    return LlamaModel(path, device, interrupt)


class LlamaVocabulary:
    """The tokens of a GGUF file."""

    def __init__(self, low: Any, model: Any) -> None:
        self._low = low
        self._handle = low.llama_model_get_vocab(model)
        self._pieces: dict[int, bytes] = {}
        self.size = int(low.llama_vocab_n_tokens(self._handle))
        self.bos = _token(low.llama_vocab_bos(self._handle))
        self.eos = _token(low.llama_vocab_eos(self._handle))
        # llama.cpp asserts that the tokens exist which the file asks to add.
        self._has_ends = (self.bos is not None or not low.llama_vocab_get_add_bos(self._handle)) and (
            self.eos is not None or not low.llama_vocab_get_add_eos(self._handle)
        )
        template: bytes | None = low.llama_model_chat_template(model, None)
        self.template: str | None = template.decode("utf-8", "surrogateescape") if template else None

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
        room, add = len(encoded) + 8, start and self._has_ends
        while True:
            buffer = (self._low.llama_token * room)()
            n = self._low.llama_tokenize(self._vocab, encoded, len(encoded), buffer, room, add, special)
            if n >= 0:
                return list(buffer[:n])
            room = -n

    def token_bytes(self, token: int) -> bytes:
        known = self._pieces.get(token)
        if known is None:
            known = self._pieces[token] = self._read_piece(token)
        return known

    def _read_piece(self, token: int) -> bytes:
        (token,) = checked_tokens([token], self.size)
        room = 64
        while True:
            buffer = ctypes.create_string_buffer(room)
            n = self._low.llama_token_to_piece(self._vocab, token, buffer, room, 0, False)
            if n >= 0:
                return buffer.raw[:n]
            room = -n

    def label(self, token: int) -> str:
        (token,) = checked_tokens([token], self.size)
        text = self._low.llama_vocab_get_text(self._vocab, token)
        return text.decode("utf-8", "replace") if text else ""

    def is_eog(self, token: int) -> bool:
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
        self._exact = device.exact
        params = low.llama_model_default_params()
        params.n_gpu_layers = _gpu_layers(low, device)
        params.use_extra_bufts = not uses_amx(low)
        self._model = _load(low, path, params, interrupt)
        layouts = "" if params.use_extra_bufts else "|plain layouts"
        self._identity = _identity(low, path, params.n_gpu_layers) + layouts
        self.weights = sampled(path)
        self.vocabulary = LlamaVocabulary(low, self._model)
        self.trained_context = int(low.llama_model_n_ctx_train(self._model))
        self.description = f"{self.metadata('general.name') or path.stem} ({self._size()})"
        self.sampling: dict[str, float] = {}
        self._notices: list[str] = []
        for key, field in _SAMPLING_KEYS.items():
            self._take_sampling(f"general.sampling.{key}", field)

    @property
    def notices(self) -> Sequence[str]:
        """What of the file is not used as it stands."""
        return tuple(self._notices)

    def _take_sampling(self, key: str, field: str) -> None:
        """What the file states for a field of `Sampling`, where that is a value that it may have."""
        if (text := self.metadata(key)) is None:
            return
        try:
            value = stated(field, float(text))
        except ValueError:
            value = None
        if value is None:
            self._notices.append(f"{key} is {text!r:.40}, which {field} cannot be: it is ignored")
        else:
            self.sampling[field] = value

    def _size(self) -> str:
        """Parameters and quantization: 7.6B, Q4_K - Medium."""
        parameters = int(self._low.llama_model_n_params(self._model))
        size = f"{parameters / 1e9:.1f}B" if parameters >= 1e9 else f"{parameters / 1e6:.1f}M"
        kind = (_text(self._low.llama_model_desc, self._model) or "").split(maxsplit=2)  # architecture, size, type
        return f"{size}, {kind[-1]}" if kind else size

    def metadata(self, key: str) -> str | None:
        """The scalar `key` of the GGUF metadata as text, None where the file lacks it."""
        return _text(self._low.llama_model_meta_val_str, self._model, key.encode())

    def session(self, context: int, interrupt: Interrupt | None = None) -> LlamaSession:
        """A new sequence, stopped by `interrupt`, by default the model's own.

        Raises:
            OptionError: exactness is asked of a model whose state cannot go back over the padding.
            EngineError: llama.cpp could not open the context.
        """
        if self._exact and self._recurs:
            raise OptionError(
                f"exact is {self._exact}, but this model's recurrent state cannot go back over padding; leave exact out"
            )
        interrupt = interrupt or self._interrupt
        opened = self._open_context(min(context, self._positions), interrupt)
        return LlamaSession(
            opened,
            interrupt,
            vocab=self.vocabulary.size,
            identity=f"{self._identity}|threads={self._threads}" + (f"|exact={self._exact}" if self._exact else ""),
            recurs=self._recurs,
        )

    def close(self) -> None:
        if self._model:
            self.vocabulary.close()
            self._low.llama_model_free(self._model)
            self._model = None

    def _open_context(self, context: int, interrupt: Interrupt) -> Opened:
        params = self._low.llama_context_default_params()
        params.n_ctx = -(-context // _STEP) * _STEP
        params.n_batch = params.n_ubatch = _CHUNK
        params.n_threads = params.n_threads_batch = self._threads
        params.swa_full = True  # a sliding window that forgets cannot be rolled back
        params.no_perf = True
        leaves = _LEAVES if self._takes_trees else 0
        handle, errors = self._init(params, leaves)
        if not handle and leaves:
            leaves = 0
            handle, errors = self._init(params, leaves)
        if not handle:
            raise EngineError(
                f"llama.cpp could not open a context of {context} tokens ({'; '.join(errors) or 'no reason given'}); "
                "a smaller --ctx needs less memory"
            )
        if (poll := _poller()) is not None:
            callback = ctypes.cast(poll, self._low.ggml_abort_callback)
            self._low.llama_set_abort_callback(handle, callback, interrupt.address)
        # The padding of the last pass lies beyond the text. A larger context is no way out: some models choose their
        # position encoding by its length.
        length = min(context, int(self._low.llama_n_ctx(handle)) - max(0, self._exact - 1))
        chunk = int(self._low.llama_n_batch(handle))
        return Opened(self._low, handle, length, chunk, leaves, self._exact)

    def _init(self, params: Any, leaves: int) -> tuple[Any, list[str]]:
        """A llama_context, or None, and what llama.cpp complained of. One cache for all sequences, however many."""
        params.n_seq_max = max(1, leaves)
        params.kv_unified = leaves > 0
        with captured_errors() as errors:
            return self._low.llama_init_from_model(self._model, params), errors

    @property
    def _positions(self) -> int:
        """How far a text may go. Rotations go on for ever; of learned positions (GPT-2's) there is a table, and behind
        its end ggml ends the process."""
        learned = int(self._low.llama_model_rope_type(self._model)) == self._low.LLAMA_ROPE_TYPE_NONE
        return max(1, self.trained_context - max(0, self._exact - 1)) if learned else 1 << 31

    @property
    def _recurs(self) -> bool:
        """Whether a state that cannot go back is carried from token to token."""
        low = self._low
        return bool(low.llama_model_is_recurrent(self._model) or low.llama_model_is_hybrid(self._model))

    @property
    def _takes_trees(self) -> bool:
        """Whether llama.cpp keeps branches apart for this model, and all that a rollback may ask for.

        Not where layers have a sliding window: a cell that the window has left behind may be written over. Nor where
        an indexer chooses among cells by where they lie. Nor where every pass is to be like plain decoding.
        """
        indexer = f"{self.metadata('general.architecture')}.attention.indexer.head_count"
        windowed = int(self._low.llama_model_n_swa(self._model)) > 0
        return not (self._exact or self._recurs or windowed or self.metadata(indexer) is not None)


def _token(number: int) -> int | None:
    """llama.cpp says -1 where there is none."""
    return int(number) if number >= 0 else None


def _gpu_layers(low: Any, device: Device) -> int:
    if low.llama_supports_gpu_offload():
        if device.exact and device.gpu_layers:
            raise OptionError(
                f"exact is {device.exact}, but on a GPU passes of one width may still differ in their last bits; it "
                "holds on the CPU alone: give gpu_layers 0"
            )
        return device.gpu_layers
    if device.gpu_layers > 0:
        raise OptionError(
            f"gpu_layers is {device.gpu_layers}, but this llama-cpp-python was built for the CPU alone; reinstall it "
            'with CMAKE_ARGS="-DGGML_CUDA=on" (or Metal, Vulkan), or leave gpu_layers out'
        )
    return 0


def _load(low: Any, path: Path, params: Any, interrupt: Interrupt) -> Any:
    @low.llama_progress_callback  # type: ignore[untyped-decorator]
    def go_on(_fraction: float, _data: object) -> bool:
        return not interrupt.is_set

    params.progress_callback = go_on
    with captured_errors() as errors:
        model = low.llama_model_load_from_file(os.fsencode(path), params)
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
