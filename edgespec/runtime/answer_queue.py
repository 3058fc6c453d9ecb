"""The queue of a runtime's answers: one is computed at a time, the others wait in the order of their requests."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from ..backends import Interrupt
from ..errors import BusyError, ClosedError
from .turns import Turns


@dataclass(eq=False, slots=True)
class QueuePlace:
    """The place of one answer in the queue.

    Args:
        generation: the `AnswerQueue` has a new one after each `cancel_all`; a place of an older one is cancelled.
        waits: whether the answer waits for the one under way, rather than raising BusyError.
        cancelled: whether this answer alone was cancelled.
    """

    generation: object
    waits: bool
    cancelled: bool = False


class AnswerQueue:
    """Which answer of a runtime is under way, which ones wait, and which ones are cancelled. Thread-safe.

    Args:
        interrupt: stops the sessions of the runtime.
        wake_others: wakes what waits elsewhere on behalf of these answers, so that it notices a cancellation.
    """

    def __init__(self, interrupt: Interrupt, wake_others: Callable[[], None]) -> None:
        self._interrupt = interrupt
        self._wake_others = wake_others
        self._turns = Turns()
        self._generation = object()
        self._closed = False
        self._process = os.getpid()

    def __len__(self) -> int:
        """Answers under way or waiting."""
        return len(self._turns)

    def place(self, *, waits: bool) -> QueuePlace:
        """A new place, not in the queue before `enter`."""
        return QueuePlace(self._generation, waits)

    def enter(self, place: QueuePlace) -> bool:
        """Become the answer under way; False if the answer was cancelled while it waited.

        Raises:
            BusyError: another answer is under way, and this one does not wait.
            ClosedError: the queue was closed meanwhile.
        """
        if self._turns.take_at_once(place):
            return True
        if not place.waits:
            raise BusyError(
                "this runtime is computing an answer already; wait for it (wait=True), cancel it, or open `another` "
                "runtime"
            )
        if self._turns.take(place, lambda: self.is_cancelled(place)):
            return True
        self.check_open()
        return False

    def leave(self, place: QueuePlace) -> None:
        """The answer has ended; the next one may enter."""
        self._turns.leave(place)

    @contextmanager
    def idle(self) -> Iterator[None]:
        """Inside the block no answer is under way. Waits for the one that is."""
        with self._turns.turn():
            yield

    def is_cancelled(self, place: QueuePlace) -> bool:
        """Whether this answer was cancelled, alone or with all others, or the queue was closed."""
        return self._closed or place.cancelled or self._generation is not place.generation

    def cancel(self, place: QueuePlace) -> None:
        """Cancel this answer alone."""
        place.cancelled = True
        if self._is_own_process:
            self._turns.if_holder(place, self._interrupt.set)
            self._wake()

    def cancel_all(self) -> None:
        """Cancel all answers that have a place now."""
        self._generation = object()
        self._stop()

    def close(self) -> bool:
        """Cancel all answers and admit no more. False in a forked process, where nothing may be freed."""
        self._closed = True
        self._stop()
        return self._is_own_process

    def check_open(self) -> None:
        """Raises ClosedError if the runtime cannot be used: it was closed, or this process was forked."""
        self.check_process()
        if self._closed:
            raise ClosedError("this runtime is closed; load it again")

    def check_process(self) -> None:
        """Raises ClosedError in a forked process."""
        if not self._is_own_process:
            raise ClosedError(
                "this runtime was loaded before this process was forked, and a fork has none of the engine's threads; "
                "start processes by the method 'spawn', or load the models after the fork"
            )

    @property
    def _is_own_process(self) -> bool:
        return os.getpid() == self._process

    def _stop(self) -> None:
        if self._is_own_process:  # a lock that was held during a fork is never released in the forked process
            self._interrupt.set()
            self._wake()

    def _wake(self) -> None:
        self._turns.wake()
        self._wake_others()
