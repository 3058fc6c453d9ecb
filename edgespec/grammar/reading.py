"""Reading grammars in another process, which may be ended: some take exponential time within all limits of llguidance,
an intersection of patterns for one, and a thread cannot be interrupted."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from ..errors import GrammarError

_PATIENCE = 20.0  # seconds
_AT_ONCE = 2
_CHILD = Path(__file__).with_name("reading_child.py")


class GrammarReaders:
    """Up to two processes, started when they are needed. Any thread may use them.

    Args:
        patience: seconds that a grammar may take, and that one waits while two others are read.
    """

    def __init__(self, patience: float = _PATIENCE) -> None:
        self._patience = patience
        self._free = threading.BoundedSemaphore(_AT_ONCE)
        self._idle: list[_Reader] = []
        self._own = os.getpid()

    def read(self, source: str, here: Callable[[str], str | None]) -> str | None:
        """Why a list of grammars in llguidance's JSON is not valid; None if it is.

        Args:
            here: reads it in this process, where no other can be started: an app may have no Python of its own.

        Raises:
            GrammarError: it takes too long or too much memory, or two others take too long.
        """
        if self._own != os.getpid():  # a fork: the processes belong to the other one
            self._own, self._idle, self._free = os.getpid(), [], threading.BoundedSemaphore(_AT_ONCE)
        if not self._free.acquire(timeout=self._patience):
            raise GrammarError("other grammars take too long to read; try again when they are done")
        try:
            reader = self._next()
            if reader is None:
                return here(source)
            try:
                found = reader.ask(source)
            except GrammarError:
                reader.close()
                raise
            self._idle.append(reader)
            return found
        finally:
            self._free.release()

    def close(self) -> None:
        """End the processes."""
        if self._own == os.getpid():
            while self._idle:
                self._idle.pop().close()

    def _next(self) -> _Reader | None:
        with contextlib.suppress(IndexError):
            return self._idle.pop()
        if getattr(sys, "frozen", False) or not sys.executable:
            return None
        try:
            return _Reader(self._patience)
        except (OSError, ValueError):
            return None


class _Reader:
    """One process.

    Raises:
        OSError, ValueError: it cannot be started.
    """

    def __init__(self, patience: float) -> None:
        self._patience = patience
        # It must find what this process finds, also where an app changed its path.
        path = os.pathsep.join(each for each in sys.path if each)
        self._running = subprocess.Popen(  # noqa: S603
            [sys.executable, str(_CHILD), str(patience)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": path},
            start_new_session=True,  # Ctrl-C at the terminal is for this process
        )
        try:
            self._heard()
        except (OSError, ValueError):
            self.close()
            raise

    def ask(self, source: str) -> str | None:
        """Why a grammar is not valid; None if it is. Raises GrammarError if the process has ended."""
        try:
            stdin = self._running.stdin
            assert stdin is not None  # noqa: S101 - a pipe
            stdin.write(source.encode() + b"\n")
            stdin.flush()
            found: str | None = self._heard()
        except (OSError, ValueError) as error:
            raise GrammarError("the grammar takes too much memory to read; use a simpler one") from error
        if found == "late":
            raise GrammarError(f"the grammar takes more than {self._patience:g} seconds to read; use a simpler one")
        return found

    def close(self) -> None:
        """End it, and wait for its end."""
        self._running.kill()
        self._running.wait()
        for pipe in (self._running.stdin, self._running.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):  # what was not written yet
                    pipe.close()

    def _heard(self) -> str | None:
        stdout = self._running.stdout
        assert stdout is not None  # noqa: S101 - a pipe
        found: str | None = json.loads(stdout.readline())
        return found


READERS = GrammarReaders()
atexit.register(READERS.close)
