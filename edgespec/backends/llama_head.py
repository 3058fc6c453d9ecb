"""A head for multi-token prediction, run by llama.cpp over the session of its target.

It has a KV cache of its own, or reads that of the target (Gemma 4's assistant).
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from ..errors import EngineError, Interrupted, MissingPackage
from ..types import Floats
from . import Interrupt
from .head_pairs import HeadLimits, PairedHead
from .llama_batch import Batch

VERSION = "0.3.36"  # of llama-cpp-python, with which heads were tested
_PRIVATE = (
    "llama_set_embeddings_nextn",
    "llama_get_embeddings_nextn",
    "llama_get_ctx_other",
)
_ABORTED = 2


@cache
def private_functions() -> Any:
    """The functions of llama.cpp that give rows. They are not part of its public interface.

    Raises:
        MissingPackage: the installed bindings do not have them.
    """
    try:
        import llama_cpp  # noqa: PLC0415
        import llama_cpp.llama_cpp_ext as ext  # noqa: PLC0415 - raises AttributeError where llama.cpp lacks one
    except (ImportError, AttributeError) as error:
        raise MissingPackage(_lacking(str(error))) from error
    missing = [name for name in _PRIVATE if not hasattr(ext, name)]
    params = llama_cpp.llama_cpp
    for kind, field in ((params.llama_model_params, "load_mtp"), (params.llama_context_params, "ctx_other")):
        missing += [] if hasattr(kind, field) else [field]
    if missing:
        raise MissingPackage(_lacking(f"no {missing[0]}"))
    return ext


def _lacking(reason: str) -> str:
    return (
        f"this llama-cpp-python cannot draft with heads ({' '.join(reason.split())}): they need functions outside "
        f"llama.cpp's public interface; install llama-cpp-python {VERSION}, or leave the drafter mtp out"
    )


@dataclass(frozen=True, slots=True)
class OpenedHead:
    """The llama_context of a head, and its limits.

    Args:
        low: llama_cpp's low-level module.
        handle: the llama_context.
        shared: whether it reads the KV cache of its target, and therefore has none.
        width: numbers of a row.
        chunk: the most tokens of one pass.
        vocab: tokens of the target.
        context: the most tokens of text.
        poll: as in `llama_session.Opened`.
        tokens: the target's token for each row of a head with fewer; None if the head has all.
    """

    low: Any
    handle: Any
    shared: bool
    width: int
    chunk: int
    vocab: int
    context: int
    poll: Any
    tokens: Sequence[int] | None = None


class LlamaHead(PairedHead):
    """A head over one session."""

    def __init__(self, opened: OpenedHead, interrupt: Interrupt) -> None:
        super().__init__(HeadLimits(opened.vocab, opened.context, opened.width, opened.chunk, opened.shared))
        self._low, self._handle = opened.low, opened.handle
        self._memory = None if opened.shared else opened.low.llama_get_memory(opened.handle)
        self._interrupt = interrupt
        private_functions().llama_set_embeddings_nextn(self._handle, True, opened.shared)
        if opened.poll is not None:
            callback = ctypes.cast(opened.poll, self._low.ggml_abort_callback)
            self._low.llama_set_abort_callback(self._handle, callback, interrupt.address)
        self._batch = Batch(self._low, opened.chunk, 1)
        self._own = _OwnTokens(opened.tokens, opened.vocab) if opened.tokens is not None else None
        self._outputs = len(opened.tokens) if opened.tokens is not None else opened.vocab

    def close(self) -> None:
        if self._handle is not None:
            self._low.llama_free(self._handle)
            self._handle = None

    def _pass(self, tokens: Sequence[int], start: int, rows: Floats, *, logits: bool) -> None:
        if self._interrupt.is_set:
            raise Interrupted
        inside = tokens if self._own is None else self._own.inside(tokens)
        # Graphs of EAGLE-3 give the logits of all tokens, whatever was asked for.
        silent = 0 if self.shift else len(tokens) - 1
        self._batch.chain(inside, start - self.shift, silent=silent, logits=logits)
        native = self._batch.native
        native.embd = ctypes.cast(rows.ctypes.data, ctypes.POINTER(ctypes.c_float))
        status = int(self._low.llama_decode(self._handle, native))
        if status:
            self._remove(start)
            if status == _ABORTED:
                raise Interrupted
            raise EngineError(f"llama.cpp could not run the head after {len(self._tokens)} tokens (status {status})")

    def _logits(self) -> Floats:
        row: Floats = read_rows(self._low.llama_get_logits_ith(self._handle, -1), 1, self._outputs)[0]
        return row if self._own is None else self._own.spread(row)

    def _own_row(self) -> Floats:
        # A masked head, that of a shared cache, gives rows of outputs only: there is one.
        last = 0 if self._shared else int(self._batch.native.n_tokens) - 1
        found = private_functions().llama_get_embeddings_nextn(self._handle)
        own: Floats = read_rows(found, last + 1, self._rows.shape[1])[last].copy()
        return own

    def _remove(self, length: int) -> None:
        """A cache of attention always can."""
        if not self._shared:
            self._low.llama_memory_seq_rm(self._memory, 0, max(0, length - self.shift), -1)


def read_rows(pointer: Any, n: int, width: int) -> Floats:
    """Rows in llama.cpp's own buffer, float32 [n, width], valid until its next pass."""
    buffer: Any = (ctypes.c_float * (n * width)).from_address(ctypes.addressof(pointer.contents))
    return np.frombuffer(buffer, dtype=np.float32).reshape(n, width)


class _OwnTokens:
    """The tokens of a head that has fewer than its target.

    Args:
        tokens: those of the target, one for each row of the head.
        vocab: how many the target has.
    """

    def __init__(self, tokens: Sequence[int], vocab: int) -> None:
        self._theirs = np.array(tokens, np.int64)
        self._ours = np.zeros(vocab, np.int32)  # a token without a row is taken for the first one
        self._ours[self._theirs] = np.arange(len(tokens), dtype=np.int32)
        self._row = np.full(vocab, -np.inf, np.float32)

    def inside(self, tokens: Sequence[int]) -> Sequence[int]:
        """The head's numbers of the target's tokens."""
        found: list[int] = self._ours[list(tokens)].tolist()
        return found

    def spread(self, row: Floats) -> Floats:
        """Logits over the target's tokens, valid until the next call."""
        self._row[self._theirs] = row
        return self._row
