"""llama.cpp, through the low-level bindings of llama-cpp-python.

Its `Llama` class is not used: it does not expose rollback, and its speculative decoding overflows its score buffer.
"""

from __future__ import annotations

import ctypes
import platform
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from ..errors import EngineError, ModelFileError, OptionError, VocabularyMismatch
from ..sampling import stated
from ..storage.checksum import sampled
from . import Device, HiddenRows, Interrupt, Session, parallel
from .amx import uses_amx
from .attention_window import can_forget, cells
from .gguf_header import Header
from .head_header import (
    DRAFTING,
    EAGLE3,
    LAYERS_KEPT,
    drafter_of,
    drafts,
    fits_rows,
    has_head,
    is_alone,
    target_layers,
    tokens_of,
)
from .head_pairs import CHUNK
from .llama_eagle3 import Eagle3Head, OpenedEagle3, Relay
from .llama_file import check
from .llama_head import LlamaHead, OpenedHead, private_functions
from .llama_library import bindings, captured_errors, require_no_fork, text_of
from .llama_session import LlamaSession, Opened
from .llama_vocabulary import LlamaVocabulary
from .llama_weights import gpu_layers, load, price_key
from .machine import physical_cores
from .recurrent_state import SUPPORTED, Copies, state_bytes

_CHUNK = 512  # tokens of one prefill pass; llama.cpp's own default
_STEP = 256  # llama.cpp rounds the context up to a multiple of it, but after limiting the batch to the context
# Bytes of a draft model up to which its passes take one thread, except for prompts: with 15 MB on two cores a guess on
# one thread takes 0.94 to 1.12 times that on both, with 18 MB 1.33 times.
_SMALL = 16 << 20
# The same beside a target in OpenVINO. The threads of both spin for milliseconds after a pass: the target's next pass
# is 10% to 20% dearer, and a guess that waits for a second thread took 3.5 ms in place of 0.5 (18 MB). With 43 MB
# dialogues come to 1.78 times plain decoding on one thread, to 1.24 on two; larger ones were not measured. Beside ONNX
# Runtime two threads are the better ones with 43 MB (docs/drafters/together.md).
_SMALL_BESIDE_OPENVINO = 64 << 20
#: The most leaves of a tree. llama.cpp compares all pairs of sequences in every pass: 4 us for 64, 40 us for 256.
_LEAVES = 64
_WITH_SPARE = 2  # sequences: that of the text, and one that keeps a recurrent state
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
        ModelFileError: the file is missing, truncated, malformed or not GGUF; the message may quote llama.cpp's loader.
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
    return LlamaModel(path, check(path), device, interrupt)


class LlamaModel:
    """The weights of a GGUF file."""

    def __init__(self, path: Path, head: Header, device: Device, interrupt: Interrupt) -> None:
        low = bindings()
        self._low = low
        self._interrupt = interrupt
        self._threads = device.threads or physical_cores()
        self._drafts = device.drafts
        self._most_of_one_thread = _SMALL_BESIDE_OPENVINO if device.beside == "openvino" else _SMALL
        self._exact = device.exact
        self._forgets = can_forget(head.architecture)
        params = low.llama_model_default_params()
        params.n_gpu_layers = gpu_layers(low, device)
        self._on_gpu = params.n_gpu_layers != 0
        params.use_extra_bufts = not uses_amx(low)
        self._alone = _stands_alone(path, head)
        self._holds_head = drafts(head) and (self._alone or (device.head and has_head(head)))
        # A context of a head ends the process if its model was loaded without this; older bindings lack it.
        params.load_mtp = self._holds_head and head.architecture != EAGLE3
        self._eagle3 = head if head.architecture == EAGLE3 else None
        self.head_drafter = drafter_of(head)
        self._own_tokens = tokens_of(head) if self._alone else None
        self.parallel = parallel.read(head.fields, parallel.GGUF_MASK, head.vocabulary.size)
        self._path = path
        self._model = load(low, path, params, interrupt)
        if self._recurs and head.architecture not in SUPPORTED:
            low.llama_model_free(self._model)
            raise ModelFileError(
                f"{path} is of the architecture {head.architecture!r:.40}, whose recurrent state edgespec cannot roll "
                f"back after a rejected draft; it can for {', '.join(sorted(SUPPORTED))}"
            )
        layouts = "" if params.use_extra_bufts else "|plain layouts"
        self._identity = price_key(low, path, params.n_gpu_layers) + layouts
        self.weights = sampled(path)
        self.vocabulary = LlamaVocabulary(low, self._model)
        self.trained_context = int(low.llama_model_n_ctx_train(self._model))
        self.description = f"{self.metadata('general.name') or path.stem} ({self._size()})"
        self.sampling: dict[str, float] = {}
        self._notices: list[str] = []
        self._copies = (
            Copies.of(head.architecture, sum(state_bytes(head)), drafts=device.drafts) if self._recurs else None
        )
        for key, field in _SAMPLING_KEYS.items():
            self._take_sampling(f"general.sampling.{key}", field)

    @property
    def notices(self) -> Sequence[str]:
        """Values of the file that are ignored."""
        return tuple(self._notices)

    def _take_sampling(self, key: str, field: str) -> None:
        """Take the file's value for a field of `Sampling`, if it is valid."""
        if (text := self.metadata(key)) is None:
            return
        try:
            value = stated(field, float(text))
        except ValueError:
            value = None
        if value is None:
            self._notices.append(f"{key} is {text!r:.40}, which is not a valid {field}: it is ignored")
        else:
            self.sampling[field] = value

    def _size(self) -> str:
        """The number of parameters and the quantization, for example "7.6B, Q4_K - Medium"."""
        parameters = int(self._low.llama_model_n_params(self._model))
        size = f"{parameters / 1e9:.1f}B" if parameters >= 1e9 else f"{parameters / 1e6:.1f}M"
        kind = (text_of(self._low.llama_model_desc, self._model) or "").split(maxsplit=2)  # architecture, size, type
        return f"{size}, {kind[-1]}" if kind else size

    @property
    def is_part(self) -> bool:
        """Whether it is a draft model of layers of its target; see `PartOfTarget`."""
        return self.metadata(LAYERS_KEPT) is not None

    def metadata(self, key: str) -> str | None:
        """The scalar `key` of the GGUF metadata as text; None if the file does not have it."""
        return text_of(self._low.llama_model_meta_val_str, self._model, key.encode())

    def session(self, context: int, interrupt: Interrupt | None = None) -> LlamaSession:
        """A new sequence, stopped by `interrupt`, by default the model's own.

        Raises:
            ModelFileError: the file holds a head without its model.
            OptionError: `exact` was requested for a model whose recurrent state cannot be rolled back over the padding.
            EngineError: llama.cpp could not open the context.
        """
        if self._alone:
            raise ModelFileError(
                f"{self._path} holds a head without its model, and drafts for that only; give the model, and this file "
                "with --draft"
            )
        if self._exact and self._recurs:
            raise OptionError(
                f"exact is {self._exact}, but this model's recurrent state cannot be rolled back over padding; leave "
                "exact out"
            )
        opened = self._open_context(min(context, self._positions))
        identity = f"{self._identity}|threads={self._step_threads}" + (f"|exact={self._exact}" if self._exact else "")
        if opened.copies is not None:
            identity += f"|snapshots={opened.copies.snapshots}"
        if opened.window:
            identity += f"|cells={opened.cells}"
        return LlamaSession(opened, interrupt or self._interrupt, vocab=self.vocabulary.size, identity=identity)

    @property
    def holds_head(self) -> bool:
        return self._holds_head

    def head(self, target: Session, interrupt: Interrupt | None = None) -> LlamaHead:
        """The head over a session of its target; see `HeadWeights`."""
        if self._eagle3 is not None:
            return self._eagle3_head(self._eagle3, target, interrupt or self._interrupt)
        if not isinstance(target, LlamaSession):
            raise ModelFileError(f"{self._path} holds a head for a GGUF model, and the target is none; leave it out")
        low, ext = self._low, private_functions()
        if not self._holds_head:
            raise ModelFileError(f"{self._path} was loaded without a head that edgespec runs; use another drafter")
        if target.exact:
            raise OptionError(f"exact is {target.exact}, but a head needs passes of other widths; leave exact out")
        width = int(low.llama_model_n_embd_out(self._model))
        tokens, size = self._own_tokens or (None, self.vocabulary.size)
        if (target.vocab, target.row_width) != (size, width):
            raise VocabularyMismatch(
                f"{self._path} holds a head for another model: it reads rows of {width} numbers and knows "
                f"{size} tokens, the target has {target.row_width} and {target.vocab}; give the head "
                "made for this target, or take --draft none"
            )
        params = self._context_params(target.context)
        params.ctx_type = low.LLAMA_CONTEXT_TYPE_MTP
        handle = self._init_head(params, target.handle)
        shared = ext.llama_get_ctx_other(handle) == target.handle
        chunk, poll = int(low.llama_n_batch(handle)), _poller()
        opened = OpenedHead(low, handle, shared, width, chunk, target.vocab, target.context, poll, tokens)
        head = LlamaHead(opened, target.interrupt)
        target.give_rows(head)
        return head

    def _eagle3_head(self, described: Header, target: Session, interrupt: Interrupt) -> Eagle3Head:
        """An EAGLE-3 head, which reads rows that the session of any engine gives."""
        if not isinstance(target, HiddenRows):
            raise ModelFileError(
                f"{self._path} needs the hidden rows of its target, and this engine gives none; leave the head out"
            )
        width, layers = described.number("target_hidden_size"), target_layers(described)
        if not fits_rows(described, target.layer_width, target.layers, target.vocab):
            raise VocabularyMismatch(
                f"{self._path} holds a head for another model: it reads rows of {width} numbers of the layers "
                f"{', '.join(map(str, layers))} and knows {self.vocabulary.size} tokens, the target has "
                f"{target.layer_width}, {target.layers} layers and {target.vocab} tokens; give the head made for this "
                "target, or take --draft none"
            )
        other = self._lender(described, target)
        relay = Relay()
        target.follow(layers, relay)
        params = self._context_params(target.context)
        params.n_batch = params.n_ubatch = CHUNK
        # A context that is opened anew for its rows has another handle.
        handle = self._init_head(params, target.handle if other and isinstance(target, LlamaSession) else None)
        size = int(self._low.llama_model_n_embd(self._model))
        chunk = min(CHUNK, int(self._low.llama_n_batch(handle)))
        opened = OpenedHead(self._low, handle, False, size, chunk, target.vocab, target.context, _poller())
        relay.head = Eagle3Head(OpenedEagle3(opened, width * len(layers)), interrupt)
        return relay.head

    def _lender(self, described: Header, target: Session) -> bool:
        """Whether the head takes its embeddings or its output matrix from the context of its target."""
        lacking = [name for name in ("token_embd.weight", "output.weight") if name not in described.tensors]
        if not lacking:
            return False
        if not isinstance(target, LlamaSession) or target.layer_width != described.number("embedding_length"):
            raise ModelFileError(
                f"{self._path} lacks {lacking[0]}, which it would take from a GGUF target of its own width; convert "
                "the head again with `edgespec convert HEAD --for CHECKPOINT`"
            )
        return True

    def _init_head(self, params: Any, other: Any) -> Any:
        """A llama_context for a head, beside the context `other` of its target."""
        params.n_seq_max, params.n_rs_seq, params.kv_unified = 1, 0, False
        if other is not None:
            params.ctx_other = other
        with captured_errors() as errors:
            handle = self._low.llama_init_from_model(self._model, params)
        if not handle:
            raise EngineError(
                f"llama.cpp could not open the head of {self._path} ({'; '.join(errors) or 'no reason given'}); take "
                "another drafter with --drafter, or a smaller --ctx"
            )
        return handle

    def close(self) -> None:
        if self._model:
            self.vocabulary.close()
            self._low.llama_model_free(self._model)
            self._model = None

    @property
    def _step_threads(self) -> int:
        """The threads of passes but for prompts."""
        is_small = self._drafts and self._low.llama_model_size(self._model) <= self._most_of_one_thread
        return 1 if is_small else self._threads

    def _context_params(self, context: int) -> Any:
        """The parameters of a llama_context that do not depend on sequences and snapshots."""
        params = self._low.llama_context_default_params()
        params.n_ctx = -(-context // _STEP) * _STEP
        # Equal, so that no pass is split: llama.cpp would end the process if a part were no wider than the snapshots.
        params.n_batch = params.n_ubatch = _CHUNK
        params.n_threads = params.n_threads_batch = self._step_threads
        # Without it cells are lost that a far rollback needs: see llama_windowed.
        params.swa_full = cells(self._window, params.n_ctx, _CHUNK) == params.n_ctx
        params.no_perf = True
        return params

    def _open_context(self, context: int, callback: Any = None) -> Opened:
        """A new llama_context. With `callback`, llama.cpp asks it for each node of a graph whether to stop after it."""
        params = self._context_params(context)
        if callback is not None:
            params.cb_eval = callback
        handle, errors, sequences, snapshots = None, list[str](), 1, 0
        for sequences, snapshots in self._ways():
            handle, errors = self._init(params, sequences, snapshots)
            if handle:
                break
        if not handle:
            raise EngineError(
                f"llama.cpp could not open a context of {context} tokens ({'; '.join(errors) or 'no reason given'}); "
                "a smaller --ctx needs less memory"
            )
        # The padding of the last pass lies beyond the text. The context is not enlarged for it: some models choose
        # their position encoding by its length.
        length = min(context, int(self._low.llama_n_ctx(handle)) - max(0, self._exact - 1))
        chunk = int(self._low.llama_n_batch(handle))
        copies = self._copies and replace(self._copies, snapshots=snapshots)
        leaves = sequences if sequences > 1 and copies is None else 0
        width = int(self._low.llama_model_n_embd_out(self._model))
        window = 0 if params.swa_full else self._window
        return Opened(
            self._low,
            handle,
            length,
            chunk,
            leaves,
            self._exact,
            copies,
            _poller(),
            width,
            architecture=self.metadata("general.architecture") or "",
            layers=int(self._low.llama_model_n_layer(self._model)),
            layer_width=int(self._low.llama_model_n_embd(self._model)),
            reopen=lambda callback: self._open_context(context, callback),
            on_gpu=self._on_gpu,
            threads=(self._step_threads, self._threads),
            window=window,
            cells=cells(window, params.n_ctx, _CHUNK),
        )

    def _ways(self) -> Iterator[tuple[int, int]]:
        """Sequences and snapshots with which to open a context, the best ones first."""
        copies = self._copies
        if copies is None:
            if self._takes_trees:
                yield _LEAVES, 0
            yield 1, 0
            return
        snapshots = copies.snapshots
        while snapshots:
            yield 1, snapshots
            snapshots //= 2
        yield _WITH_SPARE, 0

    def _init(self, params: Any, sequences: int, snapshots: int) -> tuple[Any, list[str]]:
        """A llama_context, or None, and the errors that llama.cpp logged. All sequences share one KV cache."""
        params.n_seq_max = sequences
        params.n_rs_seq = snapshots
        params.kv_unified = sequences > 1
        with captured_errors() as errors:
            handle = self._low.llama_init_from_model(self._model, params)
        # llama.cpp takes a request for snapshots that it cannot make as one for none, without a message.
        if handle and snapshots and int(self._low.llama_n_rs_seq(handle)) < snapshots:
            self._low.llama_free(handle)
            return None, [f"no {snapshots} snapshots of the state"]
        return handle, errors

    @property
    def _window(self) -> int:
        """Tokens that layers with a sliding window attend to, where their cache need not hold all tokens; else 0."""
        return int(self._low.llama_model_n_swa(self._model)) if self._forgets else 0

    @property
    def _positions(self) -> int:
        """The longest text in tokens. Rotary positions have no limit; learned positions (GPT-2) are a table, and ggml
        ends the process beyond its end."""
        learned = int(self._low.llama_model_rope_type(self._model)) == self._low.LLAMA_ROPE_TYPE_NONE
        return max(1, self.trained_context - max(0, self._exact - 1)) if learned else 1 << 31

    @property
    def _recurs(self) -> bool:
        """Whether the model has a recurrent state, from which single tokens cannot be removed."""
        low = self._low
        return bool(low.llama_model_is_recurrent(self._model) or low.llama_model_is_hybrid(self._model))

    @property
    def _takes_trees(self) -> bool:
        """Whether llama.cpp can decode trees for this model and keep all cells that a rollback may need.

        It cannot if layers have a sliding window, because cells outside the window may be overwritten, nor if an
        indexer selects cells by their place in the cache. With `exact`, every pass must be a chain of constant width.
        """
        indexer = f"{self.metadata('general.architecture')}.attention.indexer.head_count"
        windowed = int(self._low.llama_model_n_swa(self._model)) > 0
        return not (self._exact or self._recurs or windowed or self.metadata(indexer) is not None)


@cache
def _poller() -> Any:
    """A native function that llama.cpp polls between graph nodes, true if the interrupt's flag is set.

    It is C's strlen: the flag is a string of length 0 or 1, and the callback must return 0 or 1. A Python callback
    would take the interpreter lock hundreds of times per pass.
    """
    try:
        library = ctypes.CDLL("msvcrt") if platform.system() == "Windows" else ctypes.CDLL(None)
        return library.strlen
    except (OSError, AttributeError):  # pragma: no cover - cancelling then waits for the pass to end
        return None


def _stands_alone(path: Path, head: Header) -> bool:
    """Whether the file holds a head without its model. ModelFileError if edgespec does not draft with such a head."""
    alone = is_alone(head)
    if alone and not drafts(head):
        raise ModelFileError(
            f"{path} holds a head of the architecture {head.architecture!r:.40} without its model, and edgespec "
            f"does not draft with that; it does with those of {', '.join(DRAFTING)}"
        )
    return alone
