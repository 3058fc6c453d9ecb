"""The step "prices": what passes of each width cost, and what is spent on the host beside them.

They are measured as in `benchmarks.simulator.measured`; `python -m benchmarks.gpu curves` adds them to the simulator's.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import closing
from importlib.metadata import version
from typing import Any

from edgespec import Interrupt
from edgespec.backends import Session, open_model
from edgespec.backends.llama import LlamaModel

from ..simulator.measured import passes
from . import prices_host, speeds
from .results import Item
from .setting import Setting
from .shapes import WEIGHTS

_WIDTHS = tuple(range(1, 33))
_CONTEXTS = {256: 7, 4096: 5, 16384: 3}  # tokens in the cache, and the sweeps that count
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
            setting, size, weights, max(contexts) + 64, lambda _, session: passes(session, _WIDTHS, contexts)
        )
        found |= {"threads": setting.place().threads, "version": f"llama-cpp-python {version('llama-cpp-python')}"}
        if weights not in speeds.WEIGHTS:
            setting.drop(size, weights)
        return found

    return work


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
