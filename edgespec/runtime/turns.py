"""A lock that serves in order of arrival, and whose queue can be left."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Turns:
    """One holder at a time, the others in the order in which they came. Any object can stand in the queue."""

    def __init__(self) -> None:
        # Reentrant: a garbage collection inside may close a stream, which leaves.
        self._changed = threading.Condition(threading.RLock())
        self._queue: list[object] = []  # the first is the holder

    def take(self, who: object, gives_up: Callable[[], bool] = lambda: False) -> bool:
        """Wait until `who` is the holder. False, and `who` left the queue, if `gives_up` says so first.

        `gives_up` is asked now and at every `wake`.
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
        """Become the holder if there is none."""
        with self._changed:
            if self._queue:
                return False
            self._queue.append(who)
            return True

    def leave(self, who: object) -> None:
        """Give the turn, or the place in the queue, back."""
        with self._changed:
            self._queue.remove(who)
            self._changed.notify_all()

    def wake(self) -> None:
        """Let those who wait look whether they give up."""
        with self._changed:
            self._changed.notify_all()

    def if_holder(self, who: object, act: Callable[[], None]) -> None:
        """Call `act` if `who` is the holder; it stays the holder meanwhile."""
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
