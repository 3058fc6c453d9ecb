"""The engine that was measured to be the fastest for a model file, kept for later runs."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from ..errors import ModelFileError
from ..storage.cache import Shelf
from .device import Device
from .machine import physical_cores
from .model_files import find_model

_VERSION = 2  # 1 was measured with tokens 1, 2, 3, ..., which cost a mixture of experts more than text does
#: The packages of each engine that shares its files with another; any of them suffices.
_PACKAGES = {"onnx": ("onnxruntime-gpu", "onnxruntime"), "openvino": ("openvino",)}
_IMPORTS = {"onnx": "onnxruntime", "openvino": "openvino"}
TITLES = {"llama": "llama.cpp", "onnx": "ONNX Runtime", "openvino": "OpenVINO"}  #: the names of engines


@dataclass(frozen=True, slots=True)
class EngineChoice:
    """An engine, and what led to its choice.

    Args:
        speeds: by engine, tokens per second at measured prices: of plain steps for a model that drafts, of guesses that
            are right for one that drafts in blocks, else with the best draft length; 70% of the guesses are right.
        curves: by engine, seconds of a pass over 1, 2, ... tokens as measured now; empty if the choice was recalled.
        busy: the engines whose passes were measured while other programs were running.
    """

    engine: str
    speeds: Mapping[str, float]
    curves: Mapping[str, Sequence[float]] = field(default_factory=dict)
    busy: Collection[str] = ()

    @property
    def new(self) -> bool:
        """Whether it was measured now, not recalled."""
        return bool(self.curves)

    def __str__(self) -> str:
        others = [f"{speed:.3g} in {TITLES[name]}" for name, speed in self.speeds.items() if name != self.engine]
        than = f", {' and '.join(others)}" if others else ": no other engine loads it"
        return f"{TITLES[self.engine]}, measured: {self.speeds[self.engine]:.3g} tokens/s{than}"


def installed(engine: str) -> bool:
    """Whether the package of `engine` is installed, without importing it."""
    return find_spec(_IMPORTS[engine]) is not None if engine in _IMPORTS else True


def recall_choice(path: Path, device: Device, *, drafts: bool = False) -> EngineChoice | None:
    """What was measured for this file, these threads and these versions of the engines; None if nothing was, or if
    there is no such file (any more).

    Args:
        drafts: whether the model drafts; else it verifies.
    """
    shelf = _shelf(path, device, drafts)
    kept = shelf.read() if shelf is not None else {}
    engine, speeds = kept.get("engine"), kept.get("speeds")
    if not isinstance(speeds, dict) or not isinstance(engine, str) or engine not in speeds:
        return None
    if not all(name in _IMPORTS and isinstance(speed, float | int) and speed > 0 for name, speed in speeds.items()):
        return None
    return EngineChoice(engine, {name: float(speed) for name, speed in speeds.items()})


def keep_choice(path: Path, device: Device, choice: EngineChoice, *, drafts: bool = False) -> None:
    """Keep it for later runs; a cache that cannot be written costs a measurement, never an error."""
    shelf = _shelf(path, device, drafts)
    if shelf is not None:
        shelf.write({"engine": choice.engine, "speeds": dict(choice.speeds)})


def _shelf(path: Path, device: Device, drafts: bool) -> Shelf | None:
    """Where the choice for a file is kept; None if the file was removed or cannot be read. Opening it reports that."""
    try:
        file = find_model(path, "auto")[1].resolve()
        state = file.stat()
    except (ModelFileError, OSError):
        return None
    parts = [str(file), f"{state.st_size}", f"{state.st_mtime_ns}", f"drafts={drafts}"]
    parts += [f"threads={device.threads or physical_cores()}"]
    parts += [f"provider={device.provider}", f"exact={device.exact}", f"gpu_layers={device.gpu_layers != 0}"]
    parts += [f"{name} {_version(name)}" for names in _PACKAGES.values() for name in names]
    return Shelf("engines", "|".join(parts), _VERSION)


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "none"
