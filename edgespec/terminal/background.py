"""Work on another thread, so that the main thread handles Ctrl-C while an engine computes."""

from __future__ import annotations

import queue
import signal
import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TypeVar

from ..errors import Interrupted

T = TypeVar("T")
_POLL = 0.2  # seconds; on Windows Ctrl-C does not end a wait without a timeout


def stream(items: Iterator[T], cancel: Callable[[], None]) -> Generator[T, None, None]:
    """The items of `items`, produced on another thread. Ctrl-C calls `cancel`; a second one raises KeyboardInterrupt.

    Only for the main thread, which is where Python handles signals.
    """
    ready: queue.SimpleQueue[tuple[T] | BaseException | None] = queue.SimpleQueue()
    worker = threading.Thread(target=_pump, args=(items, ready), daemon=True)
    with _on_interrupt(cancel):
        worker.start()
        try:
            while (item := _next(ready)) is not None:
                if isinstance(item, BaseException):
                    raise item
                yield item[0]
        finally:
            if worker.is_alive():
                cancel()
                worker.join()


def call(work: Callable[[], T], cancel: Callable[[], None]) -> T:
    """Call `work` on another thread. Ctrl-C calls `cancel`, and raises KeyboardInterrupt once `work` has ended."""
    try:
        (result,) = stream(_once(work), cancel)
    except Interrupted:
        raise KeyboardInterrupt from None
    return result


def _once(work: Callable[[], T]) -> Iterator[T]:
    yield work()


def _pump(items: Iterator[T], ready: queue.SimpleQueue[tuple[T] | BaseException | None]) -> None:
    try:
        for item in items:
            ready.put((item,))
    except BaseException as error:  # noqa: BLE001 - raised again in the main thread
        ready.put(error)
    else:
        ready.put(None)


def _next(ready: queue.SimpleQueue[tuple[T] | BaseException | None]) -> tuple[T] | BaseException | None:
    while True:
        try:
            return ready.get(timeout=_POLL)
        except queue.Empty:
            continue


@contextmanager
def _on_interrupt(cancel: Callable[[], None]) -> Iterator[None]:
    """Inside the block, Ctrl-C calls `cancel` the first time and raises KeyboardInterrupt after that."""
    heard = False

    def handle(_signal: int, _frame: FrameType | None) -> None:
        nonlocal heard
        if heard:
            raise KeyboardInterrupt
        heard = True
        cancel()

    before = signal.signal(signal.SIGINT, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
