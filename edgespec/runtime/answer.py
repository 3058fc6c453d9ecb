"""The stream of an answer's events."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Generator, Iterator

from ..engine import Event


class Answer(Iterator[Event]):
    """The events of an answer. One thread may read them; `cancel` and `close` may be called from others.

    Args:
        events: makes the events; it is given a weak reference to this answer.
        check: raises an error where the events must not be read, in a forked process.
        cancel: cancels this answer.
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
        self._check()  # before the lock, which a fork may have copied in its locked state
        with self._turn:
            return next(self._events)

    def cancel(self) -> None:
        """Cancel this answer and no other, in the middle of a pass if the engine can; it ends with `Finished`, reason
        "cancelled". One that waits ends at once; one that has not begun, as soon as it is read; one that has ended is
        not changed."""
        self._cancel()

    def close(self) -> None:
        """End the stream without further events. Waits for an event that is being computed."""
        with self._turn:
            self._events.close()
