"""A head for drafting, run by llama.cpp: the logits of one pass over rows of the target.

    with Heads(path) as heads: hidden = heads.target(tokens); logits = heads.head(tokens, hidden)

The calls that give rows are private ones of llama.cpp, which the bindings have in llama_cpp_ext.
"""

from __future__ import annotations

import ctypes
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
import numpy.typing as npt
from llama_cpp import llama_cpp_ext

Floats = npt.NDArray[np.float32]


class Heads(AbstractContextManager["Heads"]):
    """A target, and its head in the same file or in `head`."""

    def __init__(self, path: Path, head: Path | None = None) -> None:
        self._opened: list[tuple[Any, Any]] = []
        model = self._model(path, load_mtp=head is None)
        self._target = self._context(model)
        llama_cpp_ext.llama_set_embeddings_nextn(self._target, True, False)
        model = self._model(head, load_mtp=True) if head else model
        self._width = llama_cpp.llama_model_n_embd_out(model)
        self._vocabulary = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model))
        self._head = self._context(model, ctx_type=llama_cpp.LLAMA_CONTEXT_TYPE_MTP, ctx_other=self._target)
        # An assistant of Gemma 4 takes one token a pass.
        llama_cpp_ext.llama_set_embeddings_nextn(self._head, True, head is not None)

    def target(self, tokens: list[int]) -> Floats:
        """The row of each token after a pass from the start, float32 [n, width]."""
        self._decode(self._target, tokens, list(range(len(tokens))), None)
        return self._rows(llama_cpp_ext.llama_get_embeddings_nextn(self._target), len(tokens), self._width)

    def head(self, tokens: list[int], rows: Floats, positions: list[int] | None = None) -> Floats:
        """The logits after each of the tokens, each with the row before it."""
        self._decode(self._head, tokens, positions or list(range(len(tokens))), rows)
        return self._rows(llama_cpp.llama_get_logits(self._head), len(tokens), self._vocabulary)

    def __exit__(self, *_: object) -> None:
        for free, what in reversed(self._opened):
            free(what)

    def _model(self, path: Path, load_mtp: bool) -> Any:
        params = llama_cpp.llama_model_default_params()
        params.n_gpu_layers, params.load_mtp = 0, load_mtp
        return self._kept(llama_cpp.llama_model_free, llama_cpp.llama_model_load_from_file(str(path).encode(), params))

    def _context(self, model: Any, **options: Any) -> Any:
        params = llama_cpp.llama_context_default_params()
        settings = {"n_ctx": 256, "n_threads": 1, "n_threads_batch": 1, "type_k": 0, "type_v": 0, "flash_attn_type": 0}
        for name, value in (settings | options).items():
            setattr(params, name, value)
        return self._kept(llama_cpp.llama_free, llama_cpp.llama_init_from_model(model, params))

    def _kept(self, free: Any, what: Any) -> Any:
        assert what
        self._opened.append((free, what))
        return what

    def _decode(self, context: Any, tokens: list[int], positions: list[int], rows: Floats | None) -> None:
        batch = llama_cpp.llama_batch_init(len(tokens), 0 if rows is None else rows.shape[1], 1)
        ids = (llama_cpp.llama_token * len(tokens))()
        if rows is not None:  # then the batch has no room for tokens, but both are read
            batch.token = ctypes.cast(ids, type(batch.token))
        batch.n_tokens = len(tokens)
        for i, (token, position) in enumerate(zip(tokens, positions, strict=True)):
            batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.logits[i] = token, position, 1, True
            batch.seq_id[i][0] = 0
        if rows is not None:
            ctypes.memmove(batch.embd, np.ascontiguousarray(rows, np.float32).ctypes.data, rows.size * 4)
        failed = llama_cpp.llama_decode(context, batch)
        if rows is not None:
            batch.token = type(batch.token)()
        llama_cpp.llama_batch_free(batch)
        assert failed == 0

    def _rows(self, found: Any, n: int, width: int) -> Floats:
        return np.ctypeslib.as_array(ctypes.cast(found, ctypes.POINTER(ctypes.c_float)), (n, width)).copy()
