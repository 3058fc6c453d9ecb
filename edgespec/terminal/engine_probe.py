"""Looks at one engine in a process of its own, which a broken library may end.

`python -m edgespec.terminal.engine_probe NAME` is that process; it prints what it found as a line of JSON.
"""

from __future__ import annotations

import importlib.metadata
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from ctypes import c_char_p, c_size_t, c_void_p
from typing import Any

_PATIENCE = 60.0  # seconds for an engine to load, and for the speed test
_NVIDIA = ("cuda", "tensorrt")  # providers of ONNX Runtime that its package has, with a GPU or without
_MODULE = "edgespec.terminal.engine_probe"
_TOKENS = 128  # of each answer of the speed test, at most


def probe(name: str) -> dict[str, Any]:
    """What is found of an engine, or by the speed test (`speed`); `error` says why it does not work.

    Nothing is raised: a process that crashes, hangs or prints something else is an error like others.
    """
    try:
        done = subprocess.run(  # noqa: S603
            [sys.executable, "-m", _MODULE, name],
            capture_output=True,
            text=True,
            errors="replace",
            stdin=subprocess.DEVNULL,
            timeout=_PATIENCE,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return {"error": f"it did not answer within {_PATIENCE:.0f} seconds", "late": True}
    except OSError as error:
        return {"error": str(error)}
    try:
        found = json.loads(done.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        found = None
    if isinstance(found, dict):
        return found
    said = done.stderr.strip().splitlines() or [""]
    return {"error": f"it ended the process with status {done.returncode}{': ' * bool(said[-1])}{said[-1][:200]}"}


def _version(*packages: str) -> str:
    """The version of the first of these packages that is installed; empty if none is."""
    for package in packages:
        try:
            return importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return ""


def _llama() -> dict[str, Any]:
    from ..backends.llama_library import bindings  # noqa: PLC0415

    low = bindings()
    features = low.llama_print_system_info().decode("utf-8", "replace")
    found = {"features": features.strip(" |\n"), "gpu": bool(low.llama_supports_gpu_offload())}
    with suppress(AttributeError):  # the bindings do not declare these functions, nor does Windows find them here
        found["devices"] = [*_ggml_devices(low._lib)]
    return found


def _ggml_devices(library: Any) -> Iterator[str]:
    get, describe = library.ggml_backend_dev_get, library.ggml_backend_dev_description
    get.restype, get.argtypes = c_void_p, [c_size_t]
    describe.restype, describe.argtypes = c_char_p, [c_void_p]
    for i in range(int(library.ggml_backend_dev_count())):
        yield describe(get(i)).decode("utf-8", "replace")


def _onnx() -> dict[str, Any]:
    from ..backends.ort_package import has_nvidia, providers  # noqa: PLC0415

    nvidia = has_nvidia()
    usable = [name for name in sorted(providers()) if nvidia or name not in _NVIDIA]
    return {"devices": usable, "nvidia": nvidia}


def _openvino() -> dict[str, Any]:
    from ..backends.openvino_package import core  # noqa: PLC0415

    devices = core().available_devices
    return {"devices": [f"{name}: {core().get_property(name, 'FULL_DEVICE_NAME')}" for name in devices]}


def _speed() -> dict[str, Any]:
    """Tokens per second of the demo pair that rewrites a text: plainly, and as edgespec decides; greedily."""
    from edgespec import models  # noqa: PLC0415

    from .. import Sampling, Speculation, load  # noqa: PLC0415
    from ..backends import OtherPrograms  # noqa: PLC0415
    from ..engine import Finished  # noqa: PLC0415

    found: dict[str, Any] = {}
    asked = [{"role": "user", "content": models.DEMO_PROMPT.read_text("utf-8").strip()}]
    with OtherPrograms() as others:
        for name, how in (("plain", Speculation(k=0)), ("speculative", Speculation())):
            with load("demo", speculation=how) as runtime:
                for event in runtime.chat(asked, Sampling(temperature=0, seed=0), max_tokens=_TOKENS):
                    if isinstance(event, Finished):
                        found["tokens"] = event.stats.tokens
                        found[f"{name}_tokens_per_second"] = round(event.stats.tokens_per_second, 1)
    return {**found, "other_programs": others.busy}


_PROBES: dict[str, tuple[tuple[str, ...], Callable[[], dict[str, Any]]]] = {
    "llama": (("llama-cpp-python",), _llama),
    "onnx": (("onnxruntime-gpu", "onnxruntime"), _onnx),
    "openvino": (("openvino",), _openvino),
    "speed": ((), _speed),
}


def _report(name: str) -> dict[str, Any]:
    packages, look = _PROBES[name]
    found: dict[str, Any] = {"version": _version(*packages)} if packages else {}
    try:
        return {**found, **look()}
    except Exception as error:  # noqa: BLE001 - whatever a broken package raises
        return {**found, "error": f"{type(error).__name__}: {' '.join(str(error).split())[:400]}"}


if __name__ == "__main__":
    print(json.dumps(_report(sys.argv[1])))  # noqa: T201 - to the process that asked
