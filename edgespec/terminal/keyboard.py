"""Input during an answer: it is not echoed into the answer, and kept for the next prompt."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any


@contextmanager
def unechoed() -> Iterator[None]:
    """Turn the terminal's echo off inside the block. The input stays in the terminal's buffer for the next prompt or
    the shell.

    Ctrl-Z restores the terminal, and continuing turns the echo off again. Only for the main thread. Does nothing where
    standard input is not a terminal, or another program is in its foreground.
    """
    keyboard = _keyboard()
    if keyboard is None:
        yield
        return
    silence, restore = keyboard
    silence()
    try:
        with _on_suspend(restore, silence):
            yield
    finally:
        restore()


def _keyboard() -> tuple[Callable[[], None], Callable[[], None]] | None:
    """Two functions, to turn the echo of standard input off and to restore it; None where that is not possible."""
    if sys.platform == "win32" or sys.stdin is None or not sys.stdin.isatty():
        return None
    import termios  # noqa: PLC0415 - not on Windows

    try:
        descriptor = sys.stdin.fileno()
        before = termios.tcgetattr(descriptor)
    except (OSError, ValueError, termios.error):
        return None

    def apply(modes: list[Any]) -> None:
        with suppress(OSError, termios.error):  # the terminal may be gone
            # The system would stop a background process that sets the terminal's modes.
            if os.tcgetpgrp(descriptor) == os.getpgrp():
                termios.tcsetattr(descriptor, termios.TCSADRAIN, modes)

    silent = list(before)
    silent[3] &= ~termios.ECHO
    return lambda: apply(silent), lambda: apply(before)


@contextmanager
def _on_suspend(before: Callable[[], None], after: Callable[[], None]) -> Iterator[None]:
    """Inside the block Ctrl-Z calls `before`, stops the process, and calls `after` when it continues."""
    if sys.platform == "win32":  # has no job control
        yield
        return

    def suspend(_signal: int, _frame: FrameType | None) -> None:
        before()
        signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        # To this thread, so that it does not continue before the process has been stopped and continued.
        signal.pthread_kill(threading.get_ident(), signal.SIGTSTP)
        signal.signal(signal.SIGTSTP, suspend)
        after()

    held = signal.signal(signal.SIGTSTP, suspend)
    try:
        yield
    finally:
        signal.signal(signal.SIGTSTP, held or signal.SIG_DFL)
