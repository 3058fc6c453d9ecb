"""ONNX Runtime: a pass is cancelled in the middle."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from edgespec import Interrupt
from edgespec.errors import Interrupted

from .onnxfolders import Folders, opened

# --- interrupting


class Setting:
    """A session of onnxruntime that is interrupted in the middle of its runs."""

    def __init__(self, session: Any, interrupt: Interrupt) -> None:
        self._session = session
        self._interrupt = interrupt

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    def run_with_iobinding(self, binding: Any, options: Any) -> None:
        self._interrupt.set()
        self._session.run_with_iobinding(binding, options)


@pytest.mark.parametrize("tree", [None, (-1, 0, 0)])
def test_a_pass_is_cancelled_in_the_middle(onnx_folders: Folders, tree: Sequence[int] | None) -> None:
    interrupt = Interrupt()
    model = opened(onnx_folders("fp32"), interrupt)
    session, other = model.session(64), model.session(64)
    for each in (session, other):
        each.prefill([5, 6, 7])
    right = other.decode([8, 9, 10], tree).copy()
    assert session._passes is not None
    graph = session._passes._graph
    object.__setattr__(graph, "session", Setting(graph.session, interrupt))
    with pytest.raises(Interrupted):
        session.decode([8, 9, 10], tree)
    with pytest.raises(Interrupted):
        session.prefill([8, 9, 10])
    object.__setattr__(graph, "session", graph.session._session)
    interrupt.clear()
    assert session.tokens == [5, 6, 7]
    np.testing.assert_array_equal(session.decode([8, 9, 10], tree), right)
    session.close()
    other.close()
    model.close()


@pytest.mark.parametrize("share", [0.1, 0.7])
def test_a_prefill_is_cancelled_from_another_thread(onnx_folders: Folders, share: float) -> None:
    interrupt = Interrupt()
    model = opened(onnx_folders("fp32"), interrupt)
    session = model.session(2048)
    session.prefill([5, 6, 7])
    tokens = [5 + i % 900 for i in range(2000)]
    started = time.perf_counter()
    session.prefill(tokens)
    whole = time.perf_counter() - started
    session.rollback(3)
    for _attempt in range(20):  # a machine so busy that it is over before the flag is set: once more
        setter = threading.Timer(share * whole, interrupt.set)
        setter.start()
        started = time.perf_counter()
        try:
            session.prefill(tokens)
        except Interrupted:
            assert session.tokens == [5, 6, 7]
            if time.perf_counter() - started > share * whole / 2:
                break  # it was under way
        else:
            session.rollback(3)
        finally:
            setter.join()
            interrupt.clear()
    else:
        pytest.fail("20 prefills, and none was cancelled in the middle")
    session.close()
    model.close()


def test_an_interrupt_that_is_set_stops_everything(onnx_folders: Folders) -> None:
    interrupt = Interrupt()
    model = opened(onnx_folders("int4"), interrupt)
    session = model.session(64)
    interrupt.set()
    for call in (session.decode, session.prefill):
        with pytest.raises(Interrupted):
            call([5, 6])
    with pytest.raises(Interrupted):
        opened(onnx_folders("int4"), interrupt)
    interrupt.clear()
    assert session.tokens == []
    assert len(session.decode([5, 6])) == 2
    session.close()
    model.close()


def test_an_interrupt_tells_those_that_live() -> None:
    class Told:
        times = 0

        def stop(self) -> None:
            Told.times += 1

    interrupt = Interrupt()
    first, second = Told(), Told()
    interrupt.register(first)
    interrupt.register(second)
    interrupt.set()
    assert Told.times == 2
    del first
    gc.collect()
    interrupt.set()
    assert Told.times == 3
    assert second
