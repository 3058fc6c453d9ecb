"""Events on their way from the thread that computes them to the event loop, few at a time."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

from .errors import ClientGone
from .settings import PATIENCE

T = TypeVar("T")

SIZE = 32  #: events that wait for the loop at most; then the thread that computes them pauses


class Channel(Generic[T]):
    """A bounded queue from one thread to one task. Make it on the event loop.

    Args:
        size: events that it holds.
        patience: seconds for which `put` waits for room.
    """

    def __init__(self, size: int = SIZE, patience: float = PATIENCE) -> None:
        self._loop = asyncio.get_running_loop()
        self._ready = asyncio.Event()
        self._changed = threading.Condition()
        self._items: deque[T] = deque()
        self._size = size
        self._patience = patience
        self._closed = False
        self._ended = False
        self._error: BaseException | None = None
        self._cancel: Callable[[], None] = _nothing

    @property
    def closed(self) -> bool:
        """Whether nobody reads any more."""
        return self._closed

    def attach(self, cancel: Callable[[], None]) -> None:
        """On the thread: what `close` shall call. Raises ClientGone if it was called already."""
        with self._changed:
            if self._closed:
                raise ClientGone
            self._cancel = cancel

    def put(self, item: T) -> None:
        """On the thread: add an event, once there is room. Raises ClientGone where nobody reads."""
        with self._changed:
            room = self._changed.wait_for(lambda: self._closed or len(self._items) < self._size, self._patience)
            if self._closed or not room:
                self._closed = True
                self._error = self._error or ClientGone()
                self._wake()
                raise ClientGone
            self._items.append(item)
        self._wake()

    def end(self, error: BaseException | None = None) -> None:
        """On the thread: there are no further events, `get` raises `error`."""
        with self._changed:
            self._ended, self._cancel = True, _nothing
            self._error = self._error or error
        self._wake()

    async def get(self) -> T | None:
        """On the loop: the next event, None after the last one. Raises what ended the work."""
        while True:
            with self._changed:
                if self._items:
                    self._changed.notify()
                    return self._items.popleft()
                if self._ended or self._error is not None:
                    if self._error is not None:
                        raise self._error
                    return None
                self._ready.clear()
            await self._ready.wait()

    def close(self) -> None:
        """On the loop: nobody reads any more; the work is cancelled."""
        with self._changed:
            self._closed = True
            self._items.clear()
            self._changed.notify()
            cancel, self._cancel = self._cancel, _nothing
        cancel()

    def _wake(self) -> None:
        try:
            self._loop.call_soon_threadsafe(self._ready.set)
        except RuntimeError:  # the loop has ended
            self._closed = True


def _nothing() -> None:
    """There is nothing to cancel."""
