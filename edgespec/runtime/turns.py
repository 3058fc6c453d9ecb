"""A fair lock: it is given in order of arrival, and a waiter can give up."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Turns:
    """A lock with one holder and a queue of waiters, first come, first served. Any object can be holder or waiter."""

    def __init__(self) -> None:
        # Reentrant: a garbage collection while the lock is held may close a stream, and that calls `leave`.
        self._changed = threading.Condition(threading.RLock())
        self._queue: list[object] = []  # the first is the holder

    def __len__(self) -> int:
        """The holder and those who wait."""
        return len(self._queue)

    def take(self, who: object, gives_up: Callable[[], bool] = lambda: False) -> bool:
        """Wait until `who` is the holder; False if `gives_up` returned True first, and then `who` has left the queue.

        `gives_up` is called at once and at every `wake`.
        """
        with self._changed:
            self._queue.append(who)
            try:
                self._changed.wait_for(lambda: self._queue[0] is who or gives_up())
            except BaseException:
                self.leave(who)
                raise
            if self._queue[0] is who:
                return True
            self.leave(who)
            return False

    def take_at_once(self, who: object) -> bool:
        """Make `who` the holder if there is none; False if there is one."""
        with self._changed:
            if self._queue:
                return False
            self._queue.append(who)
            return True

    def leave(self, who: object) -> None:
        """Remove `who`, the holder or a waiter."""
        with self._changed:
            self._queue.remove(who)
            self._changed.notify_all()

    def wake(self) -> None:
        """Let each waiter call its `gives_up`."""
        with self._changed:
            self._changed.notify_all()

    def if_holder(self, who: object, act: Callable[[], None]) -> None:
        """Call `act` if `who` is the holder. The holder does not change meanwhile."""
        with self._changed:
            if self._queue and self._queue[0] is who:
                act()

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Inside the block the caller is the holder."""
        who = object()
        self.take(who)
        try:
            yield
        finally:
            self.leave(who)
