"""What a run is of, in lines that a reader can compare: machine, versions, models."""

from __future__ import annotations

import datetime
import importlib.metadata
import platform
import shlex
from collections.abc import Sequence
from pathlib import Path

import psutil

from ..backends.machine import physical_cores

_PACKAGES = ("edgespec", "llama-cpp-python", "onnxruntime", "onnxruntime-gpu", "numpy")


def date() -> str:
    """Now, to the minute, with its time zone."""
    return datetime.datetime.now().astimezone().isoformat(timespec="minutes")


def machine() -> str:
    """Processor, cores, memory, system."""
    cores = f"{physical_cores()} of {psutil.cpu_count(logical=False) or '?'} cores"
    memory = f"{psutil.virtual_memory().total / 1e9:.0f} GB of memory"
    return f"{_processor()}, {cores}, {memory}, {platform.system()} {platform.release()}"


def _processor() -> str:
    """Its name, as Linux knows it; else what Python is told."""
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8", "replace").splitlines()
    except OSError:
        lines = []
    named = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
    return named or platform.processor() or platform.machine()


def versions() -> str:
    """Of the packages that matter here, and of Python."""
    found = [f"Python {platform.python_version()}"]
    for name in _PACKAGES:
        try:
            found.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            continue
    return ", ".join(found)


def command(words: Sequence[str]) -> str:
    """What to type to have it again."""
    return f"edgespec {shlex.join(words)}"


def model(path: Path | None, description: str) -> str:
    """A model by its file's name and what it says of itself."""
    return f"{path.name}: {description}" if path is not None else "none"
