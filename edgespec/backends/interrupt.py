"""A flag that stops sessions."""

from __future__ import annotations

import ctypes
import weakref
from typing import Protocol


class Stoppable(Protocol):
    """Work of an engine that does not poll the flag."""

    def stop(self) -> None:
        """Make the work end soon. Called from any thread; must not block."""
        ...


class Interrupt:
    """A flag that stops the sessions of a target and its draft model, even in the middle of a pass. Thread-safe.

    It is a byte in memory, not a `threading.Event`, because engines poll it from native code many times per pass. Work
    that cannot poll is registered, and stopped by a call.
    """

    def __init__(self) -> None:
        self._flag = ctypes.create_string_buffer(2)
        self._registered: tuple[weakref.ref[Stoppable], ...] = ()

    @property
    def address(self) -> int:
        """The address of the flag: a C string that is empty until the flag is set."""
        return ctypes.addressof(self._flag)

    @property
    def is_set(self) -> bool:
        """Whether the flag is set."""
        return self._flag.raw[0] != 0

    def set(self) -> None:
        """Stop the work under way. May be called from any thread."""
        self._flag.raw = b"\x01\x00"
        for reference in self._registered:
            if (stoppable := reference()) is not None:
                stoppable.stop()

    def clear(self) -> None:
        """Clear the flag, so that work is possible again."""
        self._flag.raw = b"\x00\x00"

    def register(self, stoppable: Stoppable) -> None:
        """Call `stoppable.stop` whenever the flag is set, on the thread that sets it. Only a weak reference is kept."""
        self._registered = (*(each for each in self._registered if each() is not None), weakref.ref(stoppable))
