"""The process of a peer, which ends when its standard input is closed, and so with this process."""

from __future__ import annotations

import atexit
import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil

from .setup import Absent

_GRACE = 5.0  # seconds to exit before it is killed; the watchdog has less
_QUOTED = 3  # lines of its log that tell a reason
_ERROR = re.compile(r"[\d.]+ E ")  # how llama.cpp marks those
#: Options of llama.cpp may come from the environment: those would be one contender's, and not the others'.
_OPTIONS = ("LLAMA_ARG_", "LLAMA_API_KEY")


class Process:
    """A running program; its pipes are `stdin` and `stdout`, what it logs goes to a file.

    Args:
        command: must end when its standard input does.
        name: what to call it in errors.
        environment: variables that it gets besides ours.

    Raises:
        Absent: it cannot be started.
    """

    def __init__(self, command: Sequence[str], name: str, environment: Mapping[str, str] | None = None) -> None:
        self.name = name
        self._closed = False
        self._closing = threading.RLock()  # a generator may be collected, and so closed, meanwhile
        self._peak: int | None = None
        inherited = {key: value for key, value in os.environ.items() if not key.startswith(_OPTIONS)}
        descriptor, path = tempfile.mkstemp(prefix="edgespec-bench-", suffix=".log")
        self._log = Path(path).open("rb")  # noqa: SIM115 - open for as long as it runs
        _unlink(path)  # what is open stays readable, and a killed run leaves nothing; Windows waits for its end
        self._log_path = path
        try:
            # A group of its own: Ctrl-C at the terminal is for us, and we end it.
            self._running = subprocess.Popen(  # noqa: S603 - the user names the program
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=descriptor,
                env={**inherited, **(environment or {})},
                start_new_session=True,
                creationflags=getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0),
            )
        except OSError as error:
            self._forget_log()
            raise Absent(f"{name}: {command[0]} cannot be run: {error.strerror}; give a program that can") from error
        finally:
            os.close(descriptor)
        _ALL.add(self)
        assert self._running.stdin is not None  # noqa: S101 - pipes were asked for
        assert self._running.stdout is not None  # noqa: S101
        self.stdin, self.stdout = self._running.stdin, self._running.stdout
        self.pid = self._running.pid  #: of the process whose memory counts

    def ended(self, within: float = 0.0) -> bool:
        """Whether it has ended, or ends within these seconds."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._running.wait(within)
        return self._running.returncode is not None

    def last_words(self) -> str:
        """The last error lines of its log, else the last lines, joined."""
        with contextlib.suppress(OSError, ValueError):  # closed
            self._log.seek(0)
            lines = [" ".join(line.split()) for line in self._log.read().decode("utf-8", "replace").splitlines()]
            errors = [line for line in lines if _ERROR.match(line)]
            return "; ".join((errors or [line for line in lines if line])[-_QUOTED:])
        return ""

    def reason(self, otherwise: str) -> str:
        """Why it failed: its exit status and last log lines if it has ended, else `otherwise`."""
        if self._closed:
            return "it was ended; start another"
        if not self.ended(within=1.0):
            return otherwise
        status = self._running.returncode
        words = self.last_words() or "it logged nothing"
        return f"it ended with status {status if status >= 0 else 128 - status}: {words}"

    def memory(self) -> int | None:
        """The peak memory in bytes, as far as it was observed; None where not known."""
        if not self._closed:
            found = _peak(self.pid)
            self._peak = max(found, self._peak or 0) if found else self._peak
        return self._peak

    def kill(self) -> None:
        """Kill it and the processes that it started."""
        if sys.platform == "win32":
            self._running.kill()
        else:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._running.pid, signal.SIGKILL)

    def close(self) -> None:
        """Close its standard input, wait for its end, and kill it if need be; from any thread."""
        self.memory()
        with self._closing:
            if not self._closed:
                self._closed = True
                self._end()

    def _end(self) -> None:
        _ALL.discard(self)
        try:
            with contextlib.suppress(OSError):
                self.stdin.close()
            self.ended(within=_GRACE)
        finally:
            self.kill()
            self._running.wait()
            self.stdout.close()
            self._forget_log()

    def _forget_log(self) -> None:
        self._log.close()
        _unlink(self._log_path)


def close_all() -> None:
    """End all peers, also those that are being started, which then fail; from any thread."""
    for process in tuple(_ALL):
        process.close()


_ALL: set[Process] = set()
atexit.register(close_all)


def _unlink(path: str) -> None:
    with contextlib.suppress(OSError):
        Path(path).unlink()


def _peak(pid: int) -> int | None:
    """The peak resident set of the process in bytes, or the current one where the peak is not known."""
    with contextlib.suppress(OSError, ValueError, StopIteration):
        lines = Path(f"/proc/{pid}/status").read_text("ascii", "replace").splitlines()
        return 1024 * int(next(line for line in lines if line.startswith("VmHWM:")).split()[1])
    with contextlib.suppress(psutil.Error):
        said = psutil.Process(pid).memory_info()
        return int(getattr(said, "peak_wset", said.rss))
    return None
