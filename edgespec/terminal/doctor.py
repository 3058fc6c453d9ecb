"""`edgespec doctor`: what of this machine edgespec can use, what is missing, and what installs it."""

from __future__ import annotations

import os
import platform
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib.metadata import packages_distributions
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click

from edgespec.models.hub import Hub
from edgespec.models.sizes import amount

from ..backends import TITLES
from ..backends.machine import physical_cores
from ..bench import environment
from ..errors import OptionError
from ..extras import EXTRAS, install_line
from ..storage.cache import cache_folder
from . import config
from .disk_use import size_of_folder
from .engine_probe import probe

_LEAST_FREE = 2e9  # bytes of memory below which hardly any model fits
_INSTALL = {  # of an engine that is missing or broken
    "llama": 'pip install "llama-cpp-python<0.4"',
    "onnx": 'pip install "onnxruntime<2"',
    "openvino": 'pip install "openvino<2027"',
}
_MISSING = "not installed"
_USE = {  # of an engine
    "llama": "it opens GGUF files, such as the demo pair's",
    "onnx": "it opens models that `edgespec convert --to onnx` makes",
    "openvino": "the engine with the cheapest wide passes on x86",
}
_CUDA = 'CMAKE_ARGS="-DGGML_CUDA=on" pip install --force-reinstall --no-deps --no-cache-dir "llama-cpp-python<0.4"'


@dataclass
class Examination:
    """What was found.

    Args:
        machine: processor, cores, memory and system; versions; threads that a model takes.
        engines: by name, its version and devices, or the error.
        folders: by name, the path, the bytes in it and the bytes free on its disk.
        speed: of the demo pair.
        problems: what does not work, with the way out; any of them fails the command.
        advice: what would be faster, or what further commands need.
    """

    machine: dict[str, Any] = field(default_factory=dict)
    engines: dict[str, dict[str, Any]] = field(default_factory=dict)
    folders: dict[str, dict[str, Any]] = field(default_factory=dict)
    config: str = ""
    speed: dict[str, Any] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    advice: list[str] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        """All of it, for `--json`."""
        names = ("machine", "engines", "folders", "config", "speed", "problems", "advice")
        return {"ok": not self.problems, **{name: getattr(self, name) for name in names}}


def examine(app: click.Group) -> Examination:
    """Look at the machine. What is broken is a problem of the result; nothing is raised."""
    found = Examination()
    _machine(found)
    for name in TITLES:
        _engine(found, name)
    if all(engine.get("error") == _MISSING for engine in found.engines.values()):
        found.problems.append(f"no engine is installed: {_INSTALL['llama']}")
    for name, path in (("cache", cache_folder()), ("models", Hub().cache)):
        _folder(found, name, path)
    _config(found, app)
    _extras(found)
    if "error" not in found.engines["llama"]:
        found.speed = probe("speed")
        if found.speed.get("late"):
            found.advice.append("the demo pair was too slow to measure: close other programs, and try again")
        elif "error" in found.speed:
            found.problems.append(f"the demo pair does not answer: {found.speed['error']}; reinstall edgespec")
    return found


def _machine(found: Examination) -> None:
    import psutil  # noqa: PLC0415

    memory = psutil.virtual_memory()
    found.machine = {
        "machine": environment.machine(),
        "versions": environment.versions(),
        "threads": physical_cores(),
        "memory": memory.total,
        "memory_free": memory.available,
    }
    if memory.available < _LEAST_FREE:
        found.advice.append(f"only {amount(memory.available)} of memory are free; close other programs")


def _engine(found: Examination, name: str) -> None:
    package = {"llama": "llama_cpp", "onnx": "onnxruntime", "openvino": "openvino"}[name]
    if not _is_installed(package):
        found.engines[name] = {"version": "", "error": _MISSING}
        if name != "openvino" or platform.machine().lower() in ("x86_64", "amd64"):
            found.advice.append(f"{TITLES[name]} is not installed: {_way(name, package)} ({_USE[name]})")
        return
    found.engines[name] = seen = probe(name)
    if "error" in seen:
        error = str(seen["error"])
        way = "" if "pip install" in error else f"; {_anew(name)}"  # the error may know better
        found.problems.append(f"{TITLES[name]} does not work: {error}{way}")
    if name == "onnx" and seen.get("nvidia") and found.engines["llama"].get("gpu") is False:
        found.advice.append(f"there is an NVIDIA GPU, and llama.cpp was built without CUDA: {_CUDA}")


def _way(name: str, package: str) -> str:
    """The line that installs a missing engine. One that pip believes to be there was removed in part."""
    return f"{_anew(name)} --no-deps" if package in packages_distributions() else _INSTALL[name]


def _anew(name: str) -> str:
    return _INSTALL[name].replace("install", "install --force-reinstall", 1)


def _is_installed(package: str) -> bool:
    try:
        return find_spec(package) is not None
    except (ImportError, ValueError):  # a package that is in part removed
        return False


def _folder(found: Examination, name: str, path: Path) -> None:
    there = next(parent for parent in (path, *path.parents) if parent.exists())
    try:
        free = shutil.disk_usage(there).free
    except OSError as error:
        free = 0
        found.problems.append(f"the disk of {path} cannot be read: {error.strerror}")
    writable = there.is_dir() and os.access(there, os.W_OK)
    found.folders[name] = {"path": str(path), "size": size_of_folder(path), "free": free}
    if not writable:
        variable = {"cache": "EDGESPEC_CACHE", "models": "HF_HOME"}[name]
        found.problems.append(f"{path} cannot be written; give access to {there}, or move it with {variable}")


def _config(found: Examination, app: click.Group) -> None:
    path = config.place()
    found.config = "" if path is None else str(path)
    try:
        config.defaults(app)
    except OptionError as error:
        found.problems.append(str(error))


def _extras(found: Examination) -> None:
    lacking = dict.fromkeys(extra for package, extra in EXTRAS.items() if not _is_installed(package))
    for extra in lacking:
        if extra != "openvino":  # an engine, see above
            found.advice.append(f"the extra {extra} is not installed: {install_line(extra)}")


def lines(found: Examination) -> Iterator[str]:
    """The findings as text."""
    machine = found.machine
    yield f"{machine['machine']}; {machine['threads']} threads"
    yield f"{machine['versions']}; {amount(machine['memory_free'])} of memory free"
    for name, engine in found.engines.items():
        yield f"{TITLES[name]:13} {_of_engine(engine)}"
    for name, folder in found.folders.items():
        yield f"{name:13} {folder['path']}: {amount(folder['size'])}, {amount(folder['free'])} free on its disk"
    if found.config:
        yield f"{'defaults':13} {found.config}{'' if Path(found.config).is_file() else ' (no such file)'}"
    if found.speed and "error" not in found.speed:
        yield f"{'demo pair':13} {_of_speed(found.speed)}"
    for problem in found.problems:
        yield f"problem: {problem}"
    for advice in found.advice:
        yield f"to do: {advice}"
    yield "there are problems" if found.problems else "all that is needed works"


def _of_engine(engine: Mapping[str, Any]) -> str:
    if "error" in engine:
        return f"{engine.get('version') or ''} {engine['error']}".strip()
    features = f" ({engine['features']})" if engine.get("features") else ""
    return f"{engine['version']}: {', '.join(engine.get('devices', ())) or 'devices not known'}{features}"


def _of_speed(speed: Mapping[str, Any]) -> str:
    plain, ours = speed["plain_tokens_per_second"], speed["speculative_tokens_per_second"]
    said = f"{plain} tokens/s plainly, {ours} with drafts, to rewrite a text of {speed['tokens']} tokens"
    return f"{said}; other programs were running, so it is no comparison" if speed.get("other_programs") else said
