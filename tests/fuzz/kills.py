"""Processes killed at random moments: what has a final name is whole, and the next run succeeds and cleans up.

A task is run to its end once, which tells how long it takes and what comes of it. Then it is begun again and again and
killed, every time in a new folder.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from random import Random

from ..hubserver import serving
from . import models
from .judge import Wrong, held

#: Everything is imported before the task begins, so that what is killed is work.
_BOOT = """
import os, sys, time
real, later = time.time, float(os.environ["LATER"])
time.time = lambda: real() + later
import edgespec.backends.llama, edgespec.backends.ort, edgespec.bench, edgespec.tools.check, edgespec.converters.gguf
import edgespec.converters.onnx, edgespec.converters.pair, edgespec.library, edgespec.models.hub, onnx, tokenizers
from edgespec.backends.ort_package import bindings
from edgespec.cli import main
from edgespec.backends.llama_library import bindings as llama
llama(), bindings()
print("ready", flush=True)
main()
"""
_TEMPORARY = (".part", ".old", ".edgespec-part", ".log")
_LONG_AFTER = 31 * 24 * 3600.0  # seconds: what a killed run left is nobody's by then
_REPO = "org/big-GGUF"
_FILE = "big-Q4_K_M.gguf"


@dataclass(frozen=True, slots=True)
class Task:
    """Something that writes files.

    Args:
        arguments: of the command, where OUT, TARGET, DRAFT, MODEL and PROMPTS are replaced.
        final: the files that have a final name, of those in the task's folder.
        again: what is added to the arguments where the folder has been written to before.
        before: whether the output is there already, made by an earlier run.
    """

    name: str
    arguments: Sequence[str]
    final: Callable[[Path], Iterator[Path]]
    again: Sequence[str] = ()
    before: bool = False


def _below(*parts: str) -> Callable[[Path], Iterator[Path]]:
    """The files at or below a path, of which none is a temporary one."""

    def found(folder: Path) -> Iterator[Path]:
        path = folder.joinpath(*parts)
        for each in [path] if path.is_file() else sorted(path.rglob("*")):
            if each.is_file() and not any(part.endswith(_TEMPORARY) for part in each.relative_to(folder).parts):
                yield each

    return found


def _json(kind: str) -> Callable[[Path], Iterator[Path]]:
    return lambda folder: iter(sorted((folder / kind).rglob("*.json")))


_FEW = ("--threads", "1", "--max-tokens", "4")
_PAIR = ("convert", "--pair", "TARGET", "DRAFT", "--out", "OUT", "--max-tokens", "4", "--prompts", "PROMPTS")
_BENCH = ("bench", "MODEL", "--draft", "none", "--suite", "QUESTIONS", "--out", "OUT", *_FEW)
TASKS = (
    Task("gguf", ("convert", "TARGET", "--out", "OUT.gguf"), _below("out.gguf")),
    Task("gguf, forced", ("convert", "TARGET", "--out", "OUT.gguf", "--force"), _below("out.gguf"), before=True),
    Task("onnx", ("convert", "TARGET", "--to", "onnx", "--out", "OUT"), _below("out")),
    Task("onnx, forced", ("convert", "TARGET", "--to", "onnx", "--out", "OUT", "--force"), _below("out"), before=True),
    Task("checkpoint", ("chat", "TARGET", "--draft", "none", "-p", "Hello", *_FEW), _below("cache", "converted")),
    Task("pair", _PAIR, _below("out"), again=("--force",)),
    Task("prices", ("chat", "MODEL", "--draft", "none", "--remember", "-p", "Hello", *_FEW), _json("cache")),
    Task("pull", ("models", "pull", f"{_REPO}:q4_k_m"), _below("hub")),
    Task("bench", _BENCH, _json("out"), again=("--force",)),
)
#: What holds figures of the moment: whole is what can be read.
_MEASURED = ("pair", "prices", "bench")


class Killer:
    """Tasks in folders below `root`."""

    def __init__(self, root: Path, stack: ExitStack) -> None:
        self._root = root
        self._models = models.make(root / "models")
        (root / "prompts.jsonl").write_text('{"prompt": "Hello there"}\n{"prompt": "And you?"}\n', encoding="utf-8")
        question = {"question_id": 1, "category": "qa", "turns": ["Hello there"]}
        (root / "questions.jsonl").write_text(json.dumps(question), encoding="utf-8")
        content = self._models.gguf("qwen2").read_bytes() + Random(5).randbytes(12_000_000)
        self._hub = stack.enter_context(serving({_REPO: {_FILE: content}})).endpoint
        self._whole: dict[str, dict[str, bytes]] = {}
        self._seconds: dict[str, float] = {}

    def learn(self, task: Task) -> None:
        """Run `task` to its end, undisturbed."""
        folder = self._folder(f"whole-{task.name}", task)
        process = self._begun(task, folder)
        begun = time.monotonic()
        self._ended(task, process)
        self._seconds[task.name] = time.monotonic() - begun
        self._whole[task.name] = {path.relative_to(folder).as_posix(): path.read_bytes() for path in task.final(folder)}
        if not self._whole[task.name]:
            raise Wrong("task", f"{task.name} leaves nothing")

    def kill(self, task: Task, rng: Random, number: int) -> str:
        """Kill `task` at some moment. What was found; raises `Wrong` for what must not be."""
        folder = self._folder(f"{number}", task)
        process = self._begun(task, folder)
        share = rng.uniform(0, 1.05) if rng.random() < 0.6 else rng.uniform(0.7, 1.1)
        time.sleep(share * self._seconds[task.name])
        process.kill()
        process.communicate()
        there = self._check(task, folder, f"killed after {share:.3f} of the time")
        if rng.random() < 0.25:
            self._again(task, folder)
        shutil.rmtree(folder)
        return f"{task.name} {share:.3f}: {there} files"

    def _check(self, task: Task, folder: Path, how: str) -> int:
        """How many files have a final name; each of them is whole."""
        there = 0
        for path in task.final(folder):
            name, there = path.relative_to(folder).as_posix(), there + 1
            if task.name in _MEASURED and path.suffix == ".json":
                try:
                    json.loads(path.read_bytes())
                except ValueError as error:
                    raise Wrong("half", f"{task.name}: {name} is no JSON, {how}: {error}") from error
            elif (whole := self._whole[task.name].get(name)) is not None and path.read_bytes() != whole:
                raise Wrong("half", f"{task.name}: {name} is not what it should be, {how}")
        missing = self._whole[task.name].keys() - {path.relative_to(folder).as_posix() for path in task.final(folder)}
        if task.before and missing and not any(name.endswith(".old") for name in held(folder)):
            raise Wrong("lost", f"{task.name}: {sorted(missing)[0]} was there and is lost, {how}")
        if there and missing and task.name in ("onnx", "onnx, forced"):
            raise Wrong("half", f"{task.name}: {sorted(missing)[0]} is missing, {how}")
        return there

    def _again(self, task: Task, folder: Path) -> None:
        """Long after: the next run succeeds, and what the killed one left is gone."""
        finished = (folder / "out" / "pair.json").exists() or (task.name == "bench" and (folder / "out").exists())
        made = task.name in ("gguf", "onnx") and any(task.final(folder))
        more = (*task.again, *(("--force",) if made else ())) if finished or made else ()
        self._ended(task, self._begun(task, folder, more, _LONG_AFTER))
        self._check(task, folder, "run again")
        if left := sorted(name for name in held(folder) if name.endswith(_TEMPORARY)):
            raise Wrong("leftover", f"{task.name}: {', '.join(left[:4])}")

    def _folder(self, name: str, task: Task) -> Path:
        folder = self._root / name
        for each in ("cache", "hub", "home", "temporary"):
            (folder / each).mkdir(parents=True)
        for name_, content in self._whole.get(task.name, {}).items() if task.before else ():
            (folder / name_).parent.mkdir(parents=True, exist_ok=True)
            (folder / name_).write_bytes(content)
        return folder

    def _begun(self, task: Task, folder: Path, more: Sequence[str] = (), later: float = 0.0) -> subprocess.Popen[str]:
        """The process, with the task about to begin, as if so many seconds had passed."""
        named = {
            "OUT": folder / "out",
            "OUT.gguf": folder / "out.gguf",
            "TARGET": self._models.checkpoint("qwen2"),
            "DRAFT": self._models.checkpoint("qwen2"),
            "MODEL": self._models.gguf("qwen2"),
            "PROMPTS": self._root / "prompts.jsonl",
            "QUESTIONS": self._root / "questions.jsonl",
        }
        arguments = [str(named.get(each, each)) for each in (*task.arguments, *more)]
        process = subprocess.Popen(
            [sys.executable, "-I", "-c", _BOOT, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            encoding="utf-8",
            errors="replace",
            env={**os.environ, **self._environment(folder), "LATER": f"{later}"},
        )
        assert process.stdout is not None
        if (line := process.stdout.readline()) != "ready\n":
            process.kill()
            raise Wrong("task", f"{task.name} did not begin: {line}{process.communicate()[0][-1000:]}")
        return process

    def _ended(self, task: Task, process: subprocess.Popen[str]) -> None:
        try:
            said, _ = process.communicate(timeout=120)
        except subprocess.TimeoutExpired as error:
            process.kill()
            raise Wrong("hang", f"{task.name} does not end") from error
        if process.returncode != 0:
            raise Wrong("status", f"{task.name} ended with {process.returncode}: {said[-500:]}")

    def _environment(self, folder: Path) -> dict[str, str]:
        return {
            **dict.fromkeys(("TMPDIR", "TEMP", "TMP"), str(folder / "temporary")),
            **dict.fromkeys(("HOME", "USERPROFILE", "LOCALAPPDATA", "APPDATA"), str(folder / "home")),
            "EDGESPEC_CACHE": str(folder / "cache"),
            "HF_HOME": str(folder / "hub"),
            "HF_ENDPOINT": self._hub,
            "HF_HUB_OFFLINE": "0",
            "OMP_NUM_THREADS": "1",
        }


def run(kills: int, seed: int, root: Path, only: Sequence[str] = (), jobs: int = 1) -> Iterator[str | Wrong]:
    """Kill so many tasks, in turn; what was found of each, or what was wrong."""
    tasks = [task for task in TASKS if not only or task.name in only]
    with ExitStack() as stack:
        killer = Killer(root, stack)
        for task in tasks[:kills]:
            killer.learn(task)

        def killed(number: int) -> str | Wrong:
            try:
                return killer.kill(tasks[number % len(tasks)], Random(f"{seed}/kill/{number}"), number)
            except Wrong as wrong:
                return wrong

        with ThreadPoolExecutor(jobs) as pool:
            yield from pool.map(killed, range(kills))
