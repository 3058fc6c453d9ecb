"""The stream of an answer's events."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Generator, Iterator

from ..engine import Event


class Answer(Iterator[Event]):
    """The events of an answer. They may be read on one thread; `cancel` and `close` may come from others.

    Args:
        events: makes them, given a weak reference to this.
        check: raises where they must not be read.
        cancel: ends this answer.
    """

    def __init__(
        self,
        events: Callable[[Callable[[], Answer | None]], Generator[Event, None, None]],
        check: Callable[[], None],
        cancel: Callable[[], None],
    ) -> None:
        self._events = events(weakref.ref(self))
        self._check = check
        self._cancel = cancel
        self._turn = threading.Lock()

    def __next__(self) -> Event:
        self._check()  # first: after a fork somebody else may hold the lock for ever
        with self._turn:
            return next(self._events)

    def cancel(self) -> None:
        """End this answer and no other, inside a pass where the engine allows it; it finishes as `cancelled`. One that
        waits for its turn does so at once, one that was not begun when it is, one that has ended is not changed."""
        self._cancel()

    def close(self) -> None:
        """End the stream between two events: no more come. Waits while one is computed."""
        with self._turn:
            self._events.close()
