"""The step "prices": what passes of each width cost, and what is spent on the host beside them.

A pass of another width than the one before costs more than one in a row of its width: llama.cpp builds its graph anew,
and its CUDA backend launches the kernels one by one; the second in a row records a CUDA graph. So each width is timed
several times in a row: `python -m benchmarks.gpu curves` adds the settled prices to those of the simulator.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from importlib.metadata import version
from typing import Any

import numpy as np

from edgespec import Interrupt
from edgespec.backends import Session, open_model
from edgespec.backends.llama import LlamaModel

from . import prices_host, speeds
from .results import Item
from .setting import Setting
from .shapes import WEIGHTS

_WIDTHS = (*range(1, 11), 12, 16, 24, 32)
_IN_A_ROW = 5
_CONTEXTS = {256: 4, 4096: 2, 16384: 1}  # tokens in the cache, and the sweeps that count
_FEW = {256: 2, 512: 1}  # of a rehearsal
_HOST = "Q4_0"
Found = dict[str, Any]


def items(setting: Setting) -> Iterator[Item]:
    """A curve for each shape and type of weights, then what is spent on the host."""
    for size in setting.sizes:
        for weights in WEIGHTS:
            yield Item(f"{size} {weights}", _curve(setting, size, weights))
    for size in setting.sizes:
        yield Item(f"host, {size} {_HOST}", _host(setting, size))


def _curve(setting: Setting, size: str, weights: str) -> Callable[[], Found]:
    contexts = _FEW if setting.small else _CONTEXTS

    def work() -> Found:
        found = _opened(
            setting, size, weights, max(contexts) + 64, lambda _, session: in_a_row(session, _WIDTHS, contexts)
        )
        found |= {"threads": setting.place().threads, "version": f"llama-cpp-python {version('llama-cpp-python')}"}
        if weights not in speeds.WEIGHTS:
            setting.drop(size, weights)
        return found

    return work


def in_a_row(session: Session, widths: Sequence[int], contexts: Mapping[int, int]) -> Found:
    """Milliseconds by width after so many tokens ("256"), settled, and of the first and the second pass in a row of its
    width ("256, first"). The session is empty; the first sweep is not counted."""
    draw = np.random.default_rng(0)

    def some(n: int) -> list[int]:
        return [int(token) for token in draw.integers(0, 4096, n)]

    found = Found()
    for context, sweeps in sorted(contexts.items()):
        session.prefill(some(context - len(session.tokens)))
        times: dict[int, list[list[float]]] = {width: [] for width in widths}
        for _ in range(sweeps + 1):
            for width in widths:  # never down and up by turns: the last of a sweep would be the first of the next
                times[width].append([_timed(session, some(width), context) for _ in range(_IN_A_ROW)])
        counted = {width: list(zip(*rows[1:], strict=True)) for width, rows in times.items()}
        for place, name in enumerate((f"{context}, first", f"{context}, second")):
            found[name] = {str(width): _median(rows[place]) for width, rows in counted.items()}
        found[str(context)] = {
            str(width): _median([each for row in rows[2:] for each in row]) for width, rows in counted.items()
        }
    return found


def _timed(session: Session, tokens: Sequence[int], context: int) -> float:
    started = time.perf_counter()
    session.decode(tokens)
    seconds = time.perf_counter() - started
    session.rollback(context)
    return seconds


def _median(seconds: Sequence[float]) -> float:
    return round(1e3 * statistics.median(seconds), 3)


def _host(setting: Setting, size: str) -> Callable[[], Found]:
    def work() -> Found:
        return _opened(setting, size, _HOST, 1024, lambda model, session: _spent(model, session, setting))

    return work


def _spent(model: LlamaModel, session: Session, setting: Setting) -> Found:
    rounds = 5 if setting.small else 60
    found = prices_host.rounds(model, session, rounds)
    found["on the device"] = prices_host.on_device(model, rounds)
    return found


def _opened(
    setting: Setting, size: str, weights: str, context: int, measure: Callable[[LlamaModel, Session], Any]
) -> Found:
    path = setting.target(size, weights)
    before = setting.free()
    model = open_model(path, setting.place(context=context), Interrupt())
    assert isinstance(model, LlamaModel)  # noqa: S101 - for mypy: it is a GGUF file
    with closing(model), closing(model.session(context)) as session:
        found = dict(measure(model, session))
        found["MB taken"] = round((before - setting.free()) / 1e6)
    gc.collect()
    found["MB of weights"] = round(path.stat().st_size / 1e6)
    return found
