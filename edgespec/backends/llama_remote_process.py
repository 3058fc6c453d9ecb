"""The process that computes on workers, as its parent sees it.

llama.cpp ends its process when a worker is lost or answers wrongly: on a thread of its own, where nothing can catch it.
So a model over workers is in a process of its own, whose end is an error here.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

from .. import errors
from ..errors import EdgespecError, EngineError, Interrupted
from . import Interrupt
from .llama_remote_protocol import Said, receive, send

_GRACE = 10.0  # seconds from a stop to the end of the process: its pass waits for a worker that is silent
_MODULE = "edgespec.backends.llama_remote_child"
_LOG_END = 4096  # bytes


class _Call:
    """A request that may be stopped."""

    def __init__(self, process: RemoteProcess, number: int) -> None:
        self._process, self._number = process, number

    def stop(self) -> None:
        self._process.stop(self._number)


class RemoteProcess:
    """A running child.

    Raises:
        EngineError: it cannot be started.
    """

    def __init__(self) -> None:
        if getattr(sys, "frozen", False):  # `sys.executable` is the app, which would start once more
            raise EngineError(
                "models on workers need a Python interpreter, which this frozen app has not; let the app speak to "
                "`edgespec serve --rpc HOST:PORT` instead"
            )
        self._turn = threading.Lock()  # a request and its answer
        self._writing = threading.Lock()
        self._asked = 0
        self._answered = 0
        self.was_answered = False  #: whether the last request has an answer
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - open for as long as it runs
        # The child must find what this process finds, also where an app changed its path.
        path = os.pathsep.join(each for each in sys.path if each)
        environment = {**os.environ, "PYTHONPATH": path, "GGML_NO_BACKTRACE": "1", "PYTHONIOENCODING": "utf-8"}
        try:
            self._running = subprocess.Popen(  # noqa: S603
                [sys.executable, "-m", _MODULE],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._log,
                env=environment,
                start_new_session=True,  # Ctrl-C at the terminal is for this process, which stops the pass
            )
        except OSError as error:
            self._log.close()
            raise EngineError(f"{sys.executable} cannot be started ({error.strerror}); workers need it") from error
        atexit.register(self.close)

    @property
    def is_alive(self) -> bool:
        """Whether it can be asked."""
        return self._running.poll() is None

    def ask(self, do: str, interrupt: Interrupt, **said: Any) -> tuple[Said, bytearray]:
        """The answer to a request, and its bytes; an answer with an error is returned, too.

        Raises:
            Interrupted: the interrupt was set, and the process had to be ended.
            EngineError: the process has ended.
        """
        with self._turn:
            self._asked += 1
            self.was_answered = False
            call = _Call(self, self._asked)
            interrupt.register(call)
            try:
                self._tell({"do": do, "number": self._asked, **said})
                if interrupt.is_set:  # perhaps before it was registered
                    call.stop()
                found = receive(self._out)
            except (OSError, ValueError):
                found = None
            finally:
                self._answered = self._asked
        if found is not None:
            self.was_answered = True
            return found
        self.kill()
        words = self._last_words()
        self.close()
        if interrupt.is_set:
            raise Interrupted
        raise EngineError(words)

    def stop(self, number: int) -> None:
        """Stop a request if it is under way; without an answer, end the process after some time. Does not block."""
        threading.Thread(target=self._stop, args=(number,), daemon=True).start()

    def _stop(self, number: int) -> None:
        with contextlib.suppress(OSError, ValueError):
            self._tell({"do": "stop", "number": number})
        timer = threading.Timer(_GRACE, self._end_unless_answered, (number,))
        timer.daemon = True
        timer.start()

    def _end_unless_answered(self, number: int) -> None:
        if self._answered < number:
            self.kill()

    def kill(self) -> None:
        """End the process; a request under way fails."""
        self._running.kill()

    def close(self) -> None:
        """End the process and free what belongs to it, from any thread."""
        atexit.unregister(self.close)
        self.kill()
        self._running.wait()
        for each in (self._in, self._out, self._log):
            with contextlib.suppress(OSError):  # what was not written yet
                each.close()

    @property
    def _in(self) -> Any:
        return self._running.stdin

    @property
    def _out(self) -> Any:
        return self._running.stdout

    def _tell(self, said: Said) -> None:
        with self._writing:
            send(self._in, said)

    def _last_words(self) -> str:
        """The last line of its log that tells a reason."""
        with contextlib.suppress(OSError, ValueError):
            self._running.wait()
            self._log.seek(max(0, self._log.seek(0, os.SEEK_END) - _LOG_END))
            lines = [" ".join(each.split()) for each in self._log.read().decode("utf-8", "replace").splitlines()]
            told = [line for line in lines if line and not line.startswith("terminate called")]
            if told:
                return told[-1].rpartition("ggml-rpc.cpp:")[2].partition(": ")[2] or told[-1]
        return "it logged nothing"


def error_of(said: Said) -> EdgespecError | None:
    """The error in an answer; None if there is none."""
    if "error" not in said:
        return None
    kind = getattr(errors, said["error"], EngineError)
    error: EdgespecError = kind(said["message"])
    return error


def shown(path: Path) -> str:
    """A path for the child, which has the same working folder."""
    return str(path.absolute())
