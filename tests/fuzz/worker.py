"""A child process that runs inputs one after another.

It reads a line of JSON for each input, {"kind": ..., "seed": ..., "index": ...}, and answers with lines: {"note": ...}
as often as there is something to tell, and {"what": ..., "detail": ..., "peak": ...} at the end.
"""

from __future__ import annotations

import faulthandler
import gc
import json
import os
import shutil
import signal
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

from edgespec import Device, load

from .judge import Wrong, check_leftovers, held, is_own
from .kinds import ALL
from .models import Models
from .place import Place

#: Where an input may leave what is no temporary file: what is kept between runs, and what is fetched.
_OPEN = ("cache", "hub")
_PLACES = ("home", "temporary", "working", "cache", "hub")


def main(root: Path, folder: Path) -> None:
    """Run what standard input names, with the models in `root`, inside `folder`."""
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8", buffering=1)
    log = os.open(folder / "log", os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(log, stream)
    faulthandler.enable()
    if hasattr(faulthandler, "register"):
        faulthandler.register(signal.SIGUSR1)  # asked for where an input hangs
    models = Models(root / "models")
    _warm(root, folder / "cache", models)

    def reply(**said: Any) -> None:
        replies.write(json.dumps(said) + "\n")

    runner = _Runner(folder, log, models, reply)
    reply(ready=True)
    for line in sys.stdin:
        reply(**runner.run(**json.loads(line)))


def _warm(root: Path, cache: Path, models: Models) -> None:
    """Have the prices of the sound models in `cache`: measured once for all workers."""
    warm = root / "warm"
    if not warm.exists():
        for name in models.ggufs:
            load(models.gguf(name), device=Device(threads=1)).close()
        for name in models.onnxs:
            load(models.onnx(name), device=Device(threads=1)).close()
            load(models.onnx(name), device=Device(threads=1, backend="openvino")).close()
        for name in models.irs:
            load(models.ir(name), device=Device(threads=1)).close()
        with suppress(OSError):  # another worker was first
            shutil.copytree(cache, cache.with_name("warm")).rename(warm)
    shutil.copytree(warm, cache, dirs_exist_ok=True)
    # ONNX Runtime writes a file into the home folder when it is first used.
    load(models.onnx(models.onnxs[0]), device=Device(threads=1)).close()


class _Runner:
    def __init__(self, folder: Path, log: int, models: Models, reply: Callable[..., None]) -> None:
        self._folder = folder
        self._log = log
        self._models = models
        self._reply = reply
        self._places = {name: folder / name for name in _PLACES}
        self._before = {name: held(path) for name, path in self._places.items()}

    def run(self, kind: str, seed: int, index: int) -> dict[str, Any]:
        """Run one input, and say what came of it."""
        _reset_peak()
        os.ftruncate(self._log, 0)
        inputs = self._folder / "input"
        inputs.mkdir()
        place = Place(inputs, self._models, lambda text: self._reply(note=text[:2000]))
        what, detail = self._judged(kind, Random(f"{seed}/{kind}/{index}"), index, place)
        if what in ("fine", "refused") and (noise := self._noise()):
            what, detail = "noise", noise
        shutil.rmtree(inputs, ignore_errors=True)
        self._clean()
        return {"what": what, "detail": detail, "peak": _peak()}

    def _judged(self, kind: str, rng: Random, index: int, place: Place) -> tuple[str, str]:
        try:
            place.attempt(lambda: self._play(kind, rng, index, place))
            gc.collect()
            check_leftovers(self._places, self._before, _OPEN)
        except Wrong as wrong:
            return wrong.what, wrong.detail
        except (KeyboardInterrupt, MemoryError, Exception) as error:  # noqa: BLE001 - this is what is looked for
            return "traceback", f"{type(error).__name__}: {error!s:.300}{_place_of(error)}"
        return ("refused" if place.refusals else "fine"), ""

    @staticmethod
    def _play(kind: str, rng: Random, index: int, place: Place) -> None:
        module = ALL[kind]
        if index < len(module.CORPUS):
            name = list(module.CORPUS)[index]
            place.note(name)
            module.CORPUS[name](place)
        else:
            module.play(rng, place)

    def _noise(self) -> str:
        """What was written to standard output and error, by native code too."""
        os.lseek(self._log, 0, os.SEEK_SET)
        return os.read(self._log, 2000).decode("utf-8", "replace").strip()

    def _clean(self) -> None:
        """Take away what the input left, so that the next finds what this one found."""
        for name, folder in self._places.items():
            for each in sorted(held(folder) - self._before[name]):
                path = folder / each
                if path.is_dir() and not path.is_symlink():
                    shutil.rmtree(path, ignore_errors=True)
                else:
                    path.unlink(missing_ok=True)


def _place_of(error: BaseException) -> str:
    """Where in edgespec it was raised, and then the whole traceback."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if not is_own(frame.filename)] or frames
    named = [f"{Path(frame.filename).name}:{frame.lineno} in {frame.name}" for frame in ours[-3:]]
    return f" at {' < '.join(reversed(named))}\n{''.join(traceback.format_exception(error))[-3000:]}"


def _reset_peak() -> None:
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def _peak() -> int:
    """The most bytes of memory held since `_reset_peak`; 0 where the system does not tell."""
    with suppress(OSError, ValueError):
        for line in Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return 0
