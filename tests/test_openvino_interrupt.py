"""OpenVINO: passes that are interrupted, closing, and memory."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import psutil
import pytest

from edgespec import Interrupt
from edgespec.errors import ClosedError, Interrupted

from .onnxfolders import Folders
from .openvinomodels import PROMPT, opened


class Setting:
    """A request that is interrupted in the middle of its passes."""

    def __init__(self, request: Any, interrupt: Interrupt) -> None:
        self._request = request
        self._interrupt = interrupt

    def __getattr__(self, name: str) -> Any:
        return getattr(self._request, name)

    def start_async(self) -> None:
        self._interrupt.set()
        self._request.start_async()


@pytest.mark.parametrize("tree", [None, (-1, 0, 0)])
def test_a_pass_is_cancelled_in_the_middle(onnx_folders: Folders, tree: Sequence[int] | None) -> None:
    interrupt = Interrupt()
    model = opened(onnx_folders("fp32"), interrupt)
    session, other = model.session(64), model.session(64)
    for each in (session, other):
        each.prefill([5, 6, 7])
    right = other.decode([8, 9, 10], tree).copy()
    passes = session._passes
    request = passes._request
    passes._request = Setting(request, interrupt)
    with pytest.raises(Interrupted):
        session.decode([8, 9, 10], tree)
    with pytest.raises(Interrupted):
        session.prefill([8, 9, 10])
    passes._request = request
    interrupt.clear()
    assert session.tokens == [5, 6, 7]
    np.testing.assert_array_equal(session.decode([8, 9, 10], tree), right)
    session.close()
    other.close()
    model.close()


def test_a_prefill_is_cancelled_from_another_thread(onnx_folders: Folders) -> None:
    interrupt = Interrupt()
    model = opened(onnx_folders("fp32"), interrupt)
    session = model.session(2048)
    tokens = [5 + i % 900 for i in range(2000)]
    session.prefill(tokens)
    started = time.perf_counter()
    session.rollback(0)
    session.prefill(tokens)
    whole = time.perf_counter() - started
    session.rollback(3)
    for _attempt in range(20):  # a machine so busy that it is over before the flag is set: once more
        setter = threading.Timer(whole / 2, interrupt.set)
        setter.start()
        try:
            session.prefill(tokens)
        except Interrupted:
            assert list(session.tokens) == tokens[:3]
            break
        else:
            session.rollback(3)
        finally:
            setter.join()
            interrupt.clear()
    else:
        pytest.fail("20 prefills, and none was cancelled in the middle")
    session.close()
    model.close()


@pytest.mark.parametrize("width", [2, 3, 40])
def test_the_passes_after_one_that_was_stopped(onnx_folders: Folders, width: int) -> None:
    """OpenVINO prepares operators ahead of their execution. Those of a pass that was stopped must not be left to the
    next pass of an earlier width: it failed, or computed with the wrong sizes."""
    interrupt = Interrupt()
    model = opened(onnx_folders("int8"), interrupt, threads=2)
    session, other = model.session(1024), model.session(1024, Interrupt())
    tokens = [5 + i % 900 for i in range(512)]
    for each in (session, other):
        each.prefill(PROMPT)
    right = session.decode(tokens[:width]).copy()
    session.rollback(len(PROMPT))
    begun = time.perf_counter()
    session.decode(tokens)
    whole = time.perf_counter() - begun
    stopped = 0
    for attempt in range(40):
        session.rollback(len(PROMPT))
        np.testing.assert_array_equal(session.decode(tokens[:width]), right)
        session.rollback(len(PROMPT))
        setter = threading.Timer(whole * attempt / 40, interrupt.set)
        setter.start()
        try:
            session.decode(tokens)
        except Interrupted:
            stopped += 1
        setter.join()
        interrupt.clear()
        # Sessions share the operators.
        np.testing.assert_array_equal(other.decode(tokens[:width]), right)
        other.rollback(len(PROMPT))
    assert stopped
    session.close()
    other.close()
    model.close()


def test_an_interrupt_that_is_set_stops_loading(onnx_folders: Folders) -> None:
    interrupt = Interrupt()
    interrupt.set()
    with pytest.raises(Interrupted):
        opened(onnx_folders("int4"), interrupt)


def test_closed_is_closed(onnx_folders: Folders) -> None:
    model = opened(onnx_folders("fp32"))
    session = model.session(64)
    session.close()
    with pytest.raises(ClosedError):
        session.decode([5])
    model.close()
    with pytest.raises(ClosedError, match="load it again"):
        model.session(64)


def test_memory_does_not_grow_by_loading(onnx_folders: Folders) -> None:
    """Twelve models that stay take 107 MB, twelve that are closed 0.4 (measured)."""

    def once() -> None:
        model = opened(onnx_folders("fp32"))
        session = model.session(512)
        session.prefill([5] * 300)
        session.close()
        model.close()

    def resident() -> int:
        gc.collect()
        return int(psutil.Process().memory_info().rss)

    for _ in range(4):
        once()
    before = resident()
    for _ in range(12):
        once()
    assert resident() - before < 12e6
