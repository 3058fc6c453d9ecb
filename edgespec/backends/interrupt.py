"""A flag that stops sessions."""

from __future__ import annotations

import ctypes
import weakref
from typing import Protocol


class Stoppable(Protocol):
    """Work of an engine that does not poll the flag."""

    def stop(self) -> None:
        """Come to an end soon; at once, and from any thread."""
        ...


class Interrupt:
    """One flag that stops a pair of sessions, even in the middle of a pass.

    It is a byte in memory and not an Event because engines poll it from native code many times a pass; those that
    cannot are told.
    """

    def __init__(self) -> None:
        self._flag = ctypes.create_string_buffer(2)
        self._told: tuple[weakref.ref[Stoppable], ...] = ()

    @property
    def address(self) -> int:
        """Where the flag lies: a C string that is empty until the flag is set."""
        return ctypes.addressof(self._flag)

    @property
    def is_set(self) -> bool:
        """Whether work was asked to stop."""
        return self._flag.raw[0] != 0

    def set(self) -> None:
        """Stop what is under way; from any thread."""
        self._flag.raw = b"\x01\x00"
        for reference in self._told:
            if (told := reference()) is not None:
                told.stop()

    def clear(self) -> None:
        """Allow work again."""
        self._flag.raw = b"\x00\x00"

    def tell(self, told: Stoppable) -> None:
        """Stop `told`, for as long as it lives, whenever the flag is set from now on; on the thread that sets it."""
        self._told = (*(each for each in self._told if each() is not None), weakref.ref(told))
