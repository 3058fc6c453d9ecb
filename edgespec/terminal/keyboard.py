"""The keyboard while an answer streams: what is typed then does not show up in the answer."""

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
    """Inside the block the terminal echoes nothing. What is typed is kept for whoever reads next: the next prompt, or
    the shell.

    Ctrl-Z gives the terminal back as it was, and going on silences it again. For the main thread only. Does nothing
    where standard input is no terminal, or belongs to another program in the foreground.
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
    """What silences the terminal of standard input, and what restores it; None where there is none to silence."""
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
            # A program in the background would be stopped for this.
            if os.tcgetpgrp(descriptor) == os.getpgrp():
                termios.tcsetattr(descriptor, termios.TCSADRAIN, modes)

    silent = list(before)
    silent[3] &= ~termios.ECHO
    return lambda: apply(silent), lambda: apply(before)


@contextmanager
def _on_suspend(before: Callable[[], None], after: Callable[[], None]) -> Iterator[None]:
    """Inside the block Ctrl-Z calls `before`, stops the process, and calls `after` when it goes on."""
    if sys.platform == "win32":  # nor does its terminal stop programs
        yield
        return

    def suspend(_signal: int, _frame: FrameType | None) -> None:
        before()
        signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        # To this thread, so that it goes no further before the process has stopped and been continued.
        signal.pthread_kill(threading.get_ident(), signal.SIGTSTP)
        signal.signal(signal.SIGTSTP, suspend)
        after()

    held = signal.signal(signal.SIGTSTP, suspend)
    try:
        yield
    finally:
        signal.signal(signal.SIGTSTP, held or signal.SIG_DFL)
