"""Inputs to workers, and what came of them."""

from __future__ import annotations

import json
import os
import queue
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil

from . import models
from .judge import MEMORY, PATIENCE, PATIENCE_IN_ALL, is_own
from .kinds import KINDS

_POLL = 0.05  # seconds between two looks at a worker
_GROWN = 500_000_000  # bytes that an idle worker may hold before another takes its place
_LONG = 400  # inputs after which another takes its place
_START = 60.0  # seconds for a worker to come up
#: The tests by their place and edgespec as it is installed: with the repository's root on the path, `edgespec` might be
#: found there.
_BOOT = """
import sys, types
from pathlib import Path
tests = types.ModuleType("tests")
tests.__path__ = [sys.argv[1]]
sys.modules["tests"] = tests
from tests.fuzz.worker import main
main(Path(sys.argv[2]), Path(sys.argv[3]))
"""


_FRAME = re.compile(r'\s+File "([^<].*)", line (\d+) in (\S+)')


@dataclass(frozen=True, slots=True)
class Input:
    """What names an input."""

    kind: str
    seed: int
    index: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of an input.

    `what` is "fine", "refused" (an error as it should be), or the sort of failure.
    """

    input: Input
    what: str
    detail: str
    label: str
    seconds: float
    peak: int

    @property
    def failed(self) -> bool:
        return self.what not in ("fine", "refused")

    @property
    def line(self) -> str:
        """What was wrong, and how to run the input again, on one line."""
        name = f"--only {self.input.kind}:{self.input.index} --seed {self.input.seed}"
        return f"{self.what}: {name}  {self.label[:300]!r}  {self.detail.partition(chr(10))[0][:300]!r}"


class Worker:
    """A worker and the process it runs in."""

    def __init__(self, root: Path, folder: Path, patience: float) -> None:
        self._root = root
        self._patience = patience
        self._folder = folder
        self._process: subprocess.Popen[str] | None = None
        self._replies: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._done = 0

    def run(self, given: Input) -> Outcome:
        """Run an input, in another process where the last one is gone or has grown."""
        process = self._started()
        begun = time.monotonic()
        assert process.stdin is not None
        process.stdin.write(json.dumps(asdict(given)) + "\n")
        process.stdin.flush()
        label, reply, peak = self._awaited(process, begun)
        seconds = time.monotonic() - begun
        peak = max(peak, int(reply.get("peak", 0)))
        what, detail = str(reply["what"]), str(reply["detail"])
        if peak > MEMORY and what in ("fine", "refused"):
            what, detail = "memory", f"{peak / 1e9:.2f} GB"
        self._done += 1
        if what in ("hang", "signal", "memory") or self._done >= _LONG or _resident(process.pid) > _GROWN:
            self.stop()
        return Outcome(given, what, detail, label, seconds, peak)

    def stop(self) -> None:
        """End the process, and all that it started."""
        process, self._process = self._process, None
        if process is None:
            return
        for each in _descendants(process.pid):
            with suppress(psutil.Error):
                each.kill()
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                with suppress(OSError):
                    stream.close()

    def _started(self) -> subprocess.Popen[str]:
        if self._process is not None and self._process.poll() is None:
            return self._process
        self.stop()
        shutil.rmtree(self._folder, ignore_errors=True)
        for name in ("home", "temporary", "working", "cache", "hub"):
            (self._folder / name).mkdir(parents=True)
        command = [sys.executable, "-I", "-c", _BOOT, Path(__file__).parents[1], self._root, self._folder]
        process = subprocess.Popen(
            list(map(str, command)),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            cwd=self._folder / "working",
            env=_environment(self._folder),
        )
        self._replies, self._process, self._done = queue.SimpleQueue(), process, 0
        threading.Thread(target=_read, args=(process, self._replies), daemon=True).start()
        try:
            ready = self._replies.get(timeout=_START)
        except queue.Empty:
            ready = None
        if ready is None:
            self.stop()
            raise RuntimeError(f"a worker did not come up: {self._log()}")
        return process

    def _awaited(self, process: subprocess.Popen[str], begun: float) -> tuple[str, dict[str, Any], int]:
        """The label of the input under way, the last reply, and the most memory seen."""
        label, peak, looks, spent = "", 0, 0, _processor(process.pid)
        while True:
            try:
                reply = self._replies.get(timeout=_POLL)
            except queue.Empty:
                looks += 1
                peak = max(peak, _resident(process.pid), _largest(process.pid) if looks % 5 == 0 else 0)
                if peak > MEMORY:
                    return label, {"what": "memory", "detail": f"{peak / 1e9:.2f} GB and growing"}, peak
                if _processor(process.pid) - spent > self._patience or time.monotonic() - begun > PATIENCE_IN_ALL:
                    return label, {"what": "hang", "detail": _summed_up(self._dumped(process))}, peak
                continue
            if reply is None:
                status = process.wait()
                return label, {"what": "signal", "detail": f"exit status {status} {_summed_up(self._log())}"}, peak
            if "note" not in reply:
                return label, reply, peak
            label = reply["note"]

    def _dumped(self, process: subprocess.Popen[str]) -> str:
        """The log, with where the process is, if it can still tell."""
        if hasattr(signal, "SIGUSR1"):
            process.send_signal(signal.SIGUSR1)
            time.sleep(0.5)
        return self._log()

    def _log(self) -> str:
        with suppress(OSError):
            return (self._folder / "log").read_text("utf-8", "replace")[-20_000:]
        return ""


def plan(inputs: int, seed: int, kinds: Sequence[str]) -> list[Input]:
    """So many inputs, of each kind about as many; of each the corpus comes first."""
    return [Input(kinds[i % len(kinds)], seed, i // len(kinds)) for i in range(inputs)]


def run(
    inputs: Sequence[Input], jobs: int, root: Path | None = None, *, patience: float = PATIENCE
) -> Iterator[Outcome]:
    """What comes of `inputs`, in the order in which they end. Everything is done below `root`, which is kept; without
    one in a folder that is gone afterwards. An input may take `patience` seconds of a processor."""
    with rooted(root) as folder:
        if not (folder / "models").exists():
            models.make(folder / "models")
        waiting: queue.SimpleQueue[Input] = queue.SimpleQueue()
        for each in inputs:
            waiting.put(each)
        outcomes: queue.SimpleQueue[Outcome | BaseException] = queue.SimpleQueue()
        stopped = threading.Event()
        threads = [
            threading.Thread(
                target=_work, args=(Worker(folder, folder / f"job-{n}", patience), waiting, outcomes, stopped)
            )
            for n in range(jobs)
        ]
        for thread in threads:
            thread.start()
        try:
            for _ in inputs:
                outcome = outcomes.get()
                if isinstance(outcome, BaseException):
                    raise outcome
                yield outcome
        finally:
            stopped.set()
            for thread in threads:
                thread.join()


def _work(
    worker: Worker,
    waiting: queue.SimpleQueue[Input],
    outcomes: queue.SimpleQueue[Outcome | BaseException],
    stopped: threading.Event,
) -> None:
    try:
        while not stopped.is_set():
            outcomes.put(worker.run(waiting.get_nowait()))
    except queue.Empty:
        pass
    except BaseException as error:  # noqa: BLE001 - it is raised again where outcomes are read
        outcomes.put(error)
    finally:
        worker.stop()


@contextmanager
def rooted(root: Path | None) -> Iterator[Path]:
    """`root`, which is kept, or a folder that is gone afterwards."""
    if root is not None:
        root.mkdir(parents=True, exist_ok=True)
        yield root.resolve()
        return
    with tempfile.TemporaryDirectory(prefix="fuzz-", ignore_cleanup_errors=True) as folder:
        yield Path(folder).resolve()


def _environment(folder: Path) -> dict[str, str]:
    """What a worker's environment says: all that is written by default is written in `folder`."""
    temporary, home = str(folder / "temporary"), str(folder / "home")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("EDGESPEC_", "HF_", "XDG_"))}
    return {
        **kept,
        **dict.fromkeys(("TMPDIR", "TEMP", "TMP"), temporary),
        **dict.fromkeys(("HOME", "USERPROFILE", "LOCALAPPDATA", "APPDATA"), home),
        "EDGESPEC_CACHE": str(folder / "cache"),
        "HF_HOME": str(folder / "hub"),
        "HF_HUB_OFFLINE": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "NO_COLOR": "1",
        "GGML_NO_BACKTRACE": "1",
        "OMP_NUM_THREADS": "1",
    }


def _read(process: subprocess.Popen[str], replies: queue.SimpleQueue[dict[str, Any] | None]) -> None:
    assert process.stdout is not None
    with suppress(ValueError, OSError):  # closed by `stop`
        for line in process.stdout:
            replies.put(json.loads(line))
    replies.put(None)


def _summed_up(log: str) -> str:
    """The line of `log` that says why a process ended, where in edgespec that was, and all of it."""
    lines = log.splitlines()
    why = next((line for line in lines if "ASSERT" in line or line.startswith("terminate")), "")
    frames = [found for line in lines if (found := _FRAME.match(line)) and not is_own(found[1])]
    named = [f"{Path(found[1]).name}:{found[2]} in {found[3]}" for found in frames]
    return f"{why} at {' < '.join(named[:3])}\n{log}"


def _resident(pid: int) -> int:
    with suppress(psutil.Error):
        return int(psutil.Process(pid).memory_info().rss)
    return 0


def _processor(pid: int) -> float:
    """Seconds of a processor that the process and its children took."""
    with suppress(psutil.Error):
        return float(sum(psutil.Process(pid).cpu_times()[:4]))
    return 0.0


def _descendants(pid: int) -> list[psutil.Process]:
    with suppress(psutil.Error):
        return psutil.Process(pid).children(recursive=True)
    return []


def _largest(pid: int) -> int:
    """The memory of the largest process that `pid` started."""
    return max((_resident(each.pid) for each in _descendants(pid)), default=0)


class Summary:
    """Outcomes in figures."""

    def __init__(self) -> None:
        self.failures: list[Outcome] = []
        self._counts: dict[str, Counter[str]] = {}
        self._seconds: Counter[str] = Counter()
        self._slowest: Outcome | None = None
        self._largest: Outcome | None = None
        self._begun = time.monotonic()

    def add(self, outcome: Outcome) -> None:
        self._counts.setdefault(outcome.input.kind, Counter())[outcome.what] += 1
        self._seconds[outcome.input.kind] += outcome.seconds  # type: ignore[assignment]
        if outcome.failed:
            self.failures.append(outcome)
        if self._slowest is None or outcome.seconds > self._slowest.seconds:
            self._slowest = outcome
        if self._largest is None or outcome.peak > self._largest.peak:
            self._largest = outcome

    def text(self) -> str:
        """A line for each kind, and one for all."""
        lines = []
        for kind, counts in sorted(self._counts.items()):
            each = ", ".join(f"{n} {what}" for what, n in counts.most_common())
            lines.append(f"{kind}: {counts.total()} inputs, {self._seconds[kind]:.0f} s: {each}")
        total = sum(counts.total() for counts in self._counts.values())
        if self._slowest is not None and self._largest is not None:
            slow, large = self._slowest, self._largest
            lines.append(
                f"{total} inputs, {len(self.failures)} failures, {time.monotonic() - self._begun:.0f} s; slowest "
                f"{slow.input.kind}:{slow.input.index} with {slow.seconds:.1f} s, largest "
                f"{large.input.kind}:{large.input.index} with {large.peak / 1e6:.0f} MB"
            )
        return "\n".join(lines)


#: Told what a campaign has done so far.
OnOutcome = Callable[[Outcome], None]


def chosen(kinds: Sequence[str]) -> tuple[str, ...]:
    """The kinds of these names, all without any. KeyError for one unknown."""
    if unknown := [kind for kind in kinds if kind not in KINDS]:
        raise KeyError(f"no kind {unknown[0]}; there are {', '.join(KINDS)}")
    return tuple(kinds) or tuple(KINDS)
