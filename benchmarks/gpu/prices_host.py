"""What is spent beside the kernels: the copy of logits to the host, NumPy and Python, against sampling on the device.

llama.cpp chooses tokens on the device where a context is opened with samplers (`llama_context_params.samplers`): then
only the chosen tokens are copied. It takes one output for each sequence ("backend sampling supports at most 1 outputs
per sequence", llama.cpp of llama-cpp-python 0.3.36), so drafts cannot be verified by it; what it saves is measured for
a pass over one token.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from edgespec.backends import Session
from edgespec.backends.llama import LlamaModel
from edgespec.backends.llama_batch import Batch
from edgespec.backends.llama_library import bindings
from edgespec.controller.fixed import Fixed
from edgespec.drafters.lookup import Lookup
from edgespec.engine import Engine, Request, Text
from edgespec.prices import Prices
from edgespec.verify import verifier

_WIDTHS = (1, 2, 4, 8, 16)
_START = 256  # tokens in the cache
_MOST = 32  # tokens of a pass
Found = dict[str, Any]


def rounds(model: LlamaModel, session: Session, count: int) -> Found:
    """Milliseconds of a pass as llama.cpp computes it, with its logits on the host, in a session, and in a round.

    The engine's rounds are plain ones: a pass over one token.
    """
    low, context = bindings(), session.handle  # type: ignore[attr-defined]
    draw = np.random.default_rng(0)
    session.prefill([int(token) for token in draw.integers(0, 4096, _START)])
    batch, found = Batch(low, _MOST, 1), Found()

    def decode() -> None:
        if low.llama_decode(context, batch.native):
            raise RuntimeError("llama_decode failed")

    def waited() -> None:
        decode()
        low.llama_synchronize(context)

    def copied() -> None:
        decode()
        low.llama_get_logits(context)

    for width in _WIDTHS:
        tokens = [int(token) for token in draw.integers(0, 4096, width)]
        batch.chain(tokens, _START, logits=True)

        def undo() -> None:
            low.llama_memory_seq_rm(low.llama_get_memory(context), 0, _START, -1)

        def chosen(tokens: list[int] = tokens) -> None:
            session.decode(tokens).argmax(axis=1)

        ways = {"pass": waited, "with logits": copied}
        found[str(width)] = {name: timed(work, undo, count) for name, work in ways.items()}
        found[str(width)]["session, argmax"] = timed(chosen, lambda: session.rollback(_START), count)
    found["round"] = _round(model, session, count)
    return found


def _round(model: LlamaModel, session: Session, count: int) -> float:
    """Milliseconds of a plain round of the engine."""

    class Endless:
        token_bytes = model.vocabulary.token_bytes

        def is_eog(self, _token: int) -> bool:
            return False

    engine = Engine(
        session, Endless(), Fixed([Lookup()], 0), verifier("match"), session_interrupt(session), Prices([1.0])
    )
    seconds, before = list[float](), time.perf_counter()
    for event in engine.generate(Request(list(range(100, 100 + _START)), max_tokens=count)):
        now = time.perf_counter()
        if isinstance(event, Text):
            seconds.append(now - before)
        before = now
    return round(1e3 * float(np.median(seconds[2:])), 4)


def session_interrupt(session: Session) -> Any:
    """The interrupt of a session of llama.cpp."""
    return session.interrupt  # type: ignore[attr-defined]


def timed(work: Callable[[], object], undo: Callable[[], object], count: int) -> float:
    """The median milliseconds of `work`; `undo` is not timed. The first two are not counted."""
    seconds = []
    for _ in range(count + 2):
        started = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - started)
        undo()
    return round(1e3 * float(np.median(seconds[2:])), 4)


def on_device(model: LlamaModel, count: int) -> Found:
    """Milliseconds of a pass over one token that is chosen on the host and on the device, and whether both are the
    same."""
    low = bindings()
    chain = low.llama_sampler_chain_init(low.llama_sampler_chain_default_params())
    low.llama_sampler_chain_add(chain, low.llama_sampler_init_greedy())
    configured = (low.llama_sampler_seq_config * 1)(
        low.llama_sampler_seq_config(0, ctypes.cast(chain, ctypes.c_void_p))
    )
    found = Found()
    try:
        for name, samplers in (("logits", None), ("tokens", configured)):
            params = model._context_params(1024)
            params.n_batch = params.n_ubatch = params.n_outputs_max = _MOST
            if samplers is not None:
                params.samplers, params.n_samplers = ctypes.cast(samplers, type(params.samplers)), 1
            context = low.llama_init_from_model(model._model, params)
            if not context:
                return {"refused": f"llama.cpp opened no context for {name}"}
            try:
                found[name] = _greedy(low, context, model.vocabulary.size, count, on_device=samplers is not None)
            finally:
                low.llama_free(context)
    finally:
        low.llama_sampler_free(chain)
    same = found["logits"]["token"] == found["tokens"]["token"]
    return {"same tokens": same, **{name: {"1": each["ms"]} for name, each in found.items()}}


def _greedy(low: Any, context: Any, vocabulary: int, count: int, *, on_device: bool) -> Found:
    batch, draw = Batch(low, _MOST, 1), np.random.default_rng(0)
    memory, said = low.llama_get_memory(context), list[int]()
    for start in range(0, _START, _MOST):
        batch.chain([int(token) for token in draw.integers(0, 4096, _MOST)], start, logits=False)
        low.llama_decode(context, batch.native)
    batch.chain([int(draw.integers(0, 4096))], _START, logits=True)

    def work() -> None:
        if low.llama_decode(context, batch.native):
            raise RuntimeError("llama_decode failed")
        if on_device:
            said[:] = [low.llama_get_sampled_token_ith(context, 0)]
        else:
            row = np.ctypeslib.as_array(low.llama_get_logits(context), (vocabulary,))
            said[:] = [int(row.argmax())]

    milliseconds = timed(work, lambda: low.llama_memory_seq_rm(memory, 0, _START, -1), count)
    return {"ms": milliseconds, "token": said[0]}
