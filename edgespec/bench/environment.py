"""The environment of a run, a line each: date, machine, versions, models, command."""

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
    """The current time, to the minute, with its time zone."""
    return datetime.datetime.now().astimezone().isoformat(timespec="minutes")


def machine() -> str:
    """Processor, cores, memory, system."""
    cores = f"{physical_cores()} of {psutil.cpu_count(logical=False) or '?'} cores"
    memory = f"{psutil.virtual_memory().total / 1e9:.0f} GB of memory"
    return f"{_processor()}, {cores}, {memory}, {platform.system()} {platform.release()}"


def _processor() -> str:
    """The processor's name by Linux; elsewhere by Python's `platform`."""
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8", "replace").splitlines()
    except OSError:
        lines = []
    named = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
    return named or platform.processor() or platform.machine()


def versions() -> str:
    """The versions of Python, edgespec and the engines."""
    found = [f"Python {platform.python_version()}"]
    for name in _PACKAGES:
        try:
            found.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            continue
    return ", ".join(found)


def command(words: Sequence[str]) -> str:
    """The command line that repeats the run."""
    return f"edgespec {shlex.join(words)}"


def model(path: Path | None, description: str) -> str:
    """The file name and the description of a model."""
    return f"{path.name}: {description}" if path is not None else "none"
