"""A head for multi-token prediction, run by llama.cpp over the session of its target.

The head reads a token and the target's hidden row of the token before, and gives the logits of the next token and a
row with which it goes on by itself. It has a KV cache for the pairs of token and row, or reads that of the target
(Gemma 4's assistant). The target's rows are lost with its next pass, so the session gives them away after each.

Held here, with `fed` for the number of pairs in the cache of the head:

    tokens[:known]      tokens whose rows came from the target
    rows[0]             the row before position `fed`; zeros at the beginning of the text
    rows[i]             the row of the token at position `fed + i - 1`, so `known = fed + count - 1`

The pairs at the positions from `fed` on are therefore `tokens[fed:]` and `rows`, in order. Without any row (`count` 0),
the one before `fed` must come from the target again.
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
from . import Interrupt, common_prefix
from .llama_batch import Batch
from .tap import Wanted

VERSION = "0.3.36"  # of llama-cpp-python, with which heads were tested
_PRIVATE = (
    "llama_set_embeddings_nextn",
    "llama_get_embeddings_nextn",
    "llama_get_ctx_other",
)
_ABORTED = 2
_RIDING = 64  # pairs that are computed in the pass of the first guess; more go before it
_KEPT = 4  # rows kept for saved states of the target


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


class LlamaHead:
    """A head over one session, which calls `follow`, `cut` and `keep`; a drafter calls the other methods."""

    wanted = Wanted.ALL
    shift = 0  #: the pair of token p is at position p - shift, and the first `shift` tokens have none

    def __init__(self, opened: OpenedHead, interrupt: Interrupt) -> None:
        self.vocab, self.context = opened.vocab, opened.context
        self._low, self._handle, self._shared = opened.low, opened.handle, opened.shared
        self._memory = None if opened.shared else opened.low.llama_get_memory(opened.handle)
        self._interrupt = interrupt
        private_functions().llama_set_embeddings_nextn(self._handle, True, opened.shared)
        if opened.poll is not None:
            callback = ctypes.cast(opened.poll, self._low.ggml_abort_callback)
            self._low.llama_set_abort_callback(self._handle, callback, interrupt.address)
        self._batch = Batch(self._low, opened.chunk, 1)
        self._rows = np.zeros((opened.chunk + 1, opened.width), np.float32)
        self._own_row = np.zeros(opened.width, np.float32)
        self._own = _OwnTokens(opened.tokens, opened.vocab) if opened.tokens is not None else None
        self._outputs = len(opened.tokens) if opened.tokens is not None else opened.vocab
        self._count, self._fed = 1, 0
        self._tokens: list[int] = []
        self._kept: dict[int, Floats] = {}
        self._chain: list[int] = []  # the last committed token and drafted ones, in the cache after `known` pairs
        self._chain_rows: list[Floats] = []  # the head's own row after each

    # --- for the session of the target

    def follow(self, start: int, tokens: Sequence[int], rows: Floats, *, judged: bool) -> None:
        """The target computed `tokens` from position `start` on, with these rows.

        Args:
            rows: valid during this call.
            judged: whether tokens may be rejected. Others are computed by the head at once.
        """
        known = len(self._tokens)
        if start > known:  # rows are missing: no drafts until a rollback to where there are some
            return
        tokens, rows = tokens[known - start :], rows[known - start :]
        self._drop_chain(0)
        if self._count + len(tokens) > len(self._rows) and not self._feed():
            return
        self._rows[self._count : self._count + len(tokens)] = rows
        self._count += len(tokens)
        self._tokens.extend(tokens)
        if not judged:
            self._feed()

    def cut(self, length: int) -> int:
        """The text has only `length` tokens. Returns after how many of them the target must go on so that the head can
        follow: one fewer where the row of the last one is not known any more."""
        known = len(self._tokens)
        if length >= known and self._count:
            return length
        self._drop_chain(0)
        self._kept = {at: row for at, row in self._kept.items() if at <= length}
        if length >= self._fed:
            self._count = min(self._count, length - self._fed + 1)
        else:
            self._remove(length)
            self._fed, self._count = length, 1
            if length in self._kept:
                self._rows[0] = self._kept[length]
            elif length:
                self._count = 0
            else:
                self._rows[0] = 0
        del self._tokens[max(0, self._fed + self._count - 1) :]
        return len(self._tokens)

    def settle(self) -> None:
        """Nothing to do: rows of tokens that may be rejected are dropped by `cut`."""

    def resumed(self, length: int) -> int:
        """From which position on the target must compute next, at the latest, to go on after `length` tokens."""
        return length if self._count else min(length, len(self._tokens))

    def keep(self, length: int) -> None:
        """The target saved its state after `length` tokens, the last ones of which `follow` was just called."""
        if self._count and len(self._tokens) == length:
            self._kept[length] = self._rows[self._count - 1].copy()
            while len(self._kept) > _KEPT:
                del self._kept[next(iter(self._kept))]

    # --- for the drafter

    def follows(self, context: Sequence[int]) -> bool:
        """Whether the head can draft after `context`: it has the row of every token but the last one."""
        known = len(self._tokens)
        return self._count > 0 and self.shift <= known == len(context) - 1 and self._tokens == list(context[:-1])

    def logits(self, last: int, path: Sequence[int]) -> Floats:
        """The logits after the text, its last token and `path`, float32 [vocab], valid until the next call.

        Raises:
            EngineError: llama.cpp failed.
            Interrupted: the interrupt was set.
        """
        wanted = [last, *path]
        same = min(common_prefix(self._chain, wanted), len(wanted) - 1)
        self._drop_chain(same)
        for i in range(same, len(wanted)):
            self._step(wanted[i], logits=i == len(wanted) - 1)
        row: Floats = read_rows(self._low.llama_get_logits_ith(self._handle, -1), 1, self._outputs)[0]
        return row if self._own is None else self._own.spread(row)

    def close(self) -> None:
        """Free the cache. The session of the target must not follow any more."""
        if self._handle is not None:
            self._low.llama_free(self._handle)
            self._handle = None

    # --- passes

    def _step(self, token: int, *, logits: bool) -> None:
        """Compute `token`, after what is held or after the chain."""
        if self._chain:
            tokens, rows = [token], self._chain_rows[-1][None]
        else:
            if self._shared or self._count > _RIDING:
                self._require(self._feed_status())
            tokens, rows = [*self._tokens[self._fed :], token], self._rows[: self._count]
        position = len(self._tokens) + (0 if self._shared else len(self._chain))
        start = position - len(tokens) + 1
        self._require(self._pass(tokens, start, rows, logits=logits or self._shared))
        # A masked head, that of a shared cache, gives rows of outputs only: there is one.
        last = 0 if self._shared else int(self._batch.native.n_tokens) - 1
        found = private_functions().llama_get_embeddings_nextn(self._handle)
        own = read_rows(found, last + 1, self._rows.shape[1])[last].copy()
        if not self._chain:
            self._forget_fed()
        self._chain.append(token)
        self._chain_rows.append(own)

    def _feed(self) -> bool:
        """Compute all pairs that are not in the cache; False if that failed, which leaves them to be computed."""
        return self._feed_status() == 0

    def _feed_status(self) -> int:
        tokens = self._tokens[self._fed :]
        status = 0
        if tokens and not self._shared:
            status = self._pass(tokens, self._fed, self._rows[: len(tokens)], logits=False)
        if status == 0:
            self._forget_fed()
        return status

    def _forget_fed(self) -> None:
        """All pairs are in the cache: only the last row is needed."""
        self._rows[0] = self._rows[self._count - 1]
        self._fed, self._count = len(self._tokens), 1

    def _pass(self, tokens: Sequence[int], start: int, rows: Floats, *, logits: bool) -> int:
        """llama.cpp's status after a pass; the last token has logits or none has. If it fails, the cache is as before.

        Args:
            rows: contiguous, the row before each token.
        """
        if self._interrupt.is_set:
            return _ABORTED
        if skipped := max(0, self.shift - start):
            tokens, rows, start = tokens[skipped:], rows[skipped:], start + skipped
            if not tokens:
                return 0
        inside = tokens if self._own is None else self._own.inside(tokens)
        # Graphs of EAGLE-3 give the logits of all tokens, whatever was asked for.
        silent = 0 if self.shift else len(tokens) - 1
        self._batch.chain(inside, start - self.shift, silent=silent, logits=logits)
        native = self._batch.native
        native.embd = ctypes.cast(rows.ctypes.data, ctypes.POINTER(ctypes.c_float))
        status = int(self._low.llama_decode(self._handle, native))
        if status:
            self._remove(start)
        return status

    def _require(self, status: int) -> None:
        if status == _ABORTED:
            raise Interrupted
        if status:
            raise EngineError(f"llama.cpp could not run the head after {len(self._tokens)} tokens (status {status})")

    def _drop_chain(self, length: int) -> None:
        """Keep only the first `length` tokens of the chain."""
        if len(self._chain) > length:
            self._remove(len(self._tokens) + length)
            del self._chain[length:], self._chain_rows[length:]

    def _remove(self, length: int) -> None:
        """Remove all pairs from position `length` on from the cache. A cache of attention always can."""
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
