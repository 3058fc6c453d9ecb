"""llama.cpp's RPC: its library, workers that compute, and their devices in this process.

It is in builds of llama.cpp with GGML_RPC. Beside others it is a shared library of its own, which `edgespec worker
--build` compiles from the sources of the same version.
"""

from __future__ import annotations

import ctypes
import os
import socket
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from ..errors import EngineError, MissingPackage
from ..storage.cache import cache_folder
from .endpoint import Endpoint
from .llama_library import bindings
from .machine import physical_cores

_PACKAGE = "llama-cpp-python"
_SUFFIX = ".dylib" if sys.platform == "darwin" else ".so"
_NAME = f"libggml-rpc{_SUFFIX}"
_GPU, _CPU = 1, 0  # enum ggml_backend_dev_type


def installed_version() -> str:
    """The version of llama-cpp-python."""
    return version(_PACKAGE)


def built_path() -> Path:
    """Where the library for the installed llama.cpp is kept if it was built beside it."""
    return cache_folder() / "rpc" / f"{_PACKAGE}-{installed_version()}-ggml-{ggml_version()}" / _NAME


def library_folder() -> Path:
    """The folder of the libraries of llama-cpp-python."""
    return Path(bindings()._lib._name).parent


def ggml_version() -> str:
    """The version of the loaded ggml."""
    function = _ggml().ggml_version
    function.restype = ctypes.c_char_p
    text: bytes = function()
    return text.decode("ascii", "replace")


def library() -> Any:
    """llama.cpp's RPC as a loaded library.

    Raises:
        MissingPackage: this llama.cpp was built without it, and none was built beside it.
    """
    own, beside = library_folder() / _NAME, built_path()
    path = next((path for path in (own, beside) if path.is_file()), None)
    if path is None:
        name = f"{_PACKAGE}=={installed_version()}"
        raise MissingPackage(
            f"this llama.cpp was built without RPC; build it beside: `pip download --no-deps --no-binary :all: {name}`,"
            f" then `edgespec worker --build {name.replace('==', '-').replace('-', '_', 2)}.tar.gz`; or reinstall with "
            f'`CMAKE_ARGS="-DGGML_RPC=on" pip install --force-reinstall --no-binary :all: {name}`'
        )
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        raise MissingPackage(
            f"{path} cannot be loaded ({error}); build it again with `edgespec worker --build SOURCE`"
        ) from error


def attach(endpoints: Sequence[Endpoint]) -> None:
    """Add the devices of workers to those of this process, so that models which are loaded later use them.

    llama.cpp ends the process if a worker is lost, now or later: call it in a process that may end.

    Raises:
        MissingPackage: there is no RPC.
        EngineError: a worker has no device.
    """
    add = library().ggml_backend_rpc_add_server
    add.argtypes, add.restype = (ctypes.c_char_p,), ctypes.c_void_p
    register = _ggml().ggml_backend_register
    register.argtypes, register.restype = (ctypes.c_void_p,), None
    for endpoint in endpoints:
        registry = add(str(endpoint).encode("ascii"))
        if not registry:
            raise EngineError(f"the worker at {endpoint} has no device; start it again")
        register(registry)


def serve(endpoint: Endpoint, threads: int, cache: Path | None) -> None:
    """Compute for clients, one at a time, until the process is ended.

    Args:
        endpoint: where to listen.
        threads: of the CPU; 0 takes one per physical core.
        cache: a folder that keeps large tensors, so that they are sent once only; None for no folder.

    Raises:
        MissingPackage: there is no RPC.
        EngineError: the address cannot be used.
    """
    start = library().ggml_backend_rpc_start_server
    start.argtypes = (
        ctypes.c_char_p,
        ctypes.c_char_p,
        ctypes.c_size_t,
        ctypes.c_size_t,
        ctypes.POINTER(ctypes.c_void_p),
    )
    start.restype = None
    address = _bindable(endpoint)
    devices = _devices()
    listed = (ctypes.c_void_p * len(devices))(*devices)
    folder = None
    if cache is not None:
        cache.mkdir(parents=True, exist_ok=True)
        folder = os.fsencode(cache)
    start(f"{address}:{endpoint.port}".encode("ascii"), folder, threads or physical_cores(), len(devices), listed)
    raise EngineError(f"the worker at {endpoint} stopped listening; start it again")


def _bindable(endpoint: Endpoint) -> str:
    """The IPv4 address to listen at. llama.cpp does not say why it cannot."""
    address = endpoint.address()
    with socket.socket() as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trial.bind((address, endpoint.port))
        except OSError as error:
            raise EngineError(f"cannot listen at {endpoint}: {error.strerror}; give another address or port") from error
    return address


def _devices() -> list[int]:
    """The GPUs of this machine, or its CPU without any."""
    ggml = _ggml()
    ggml.ggml_backend_dev_count.restype = ctypes.c_size_t
    ggml.ggml_backend_dev_get.argtypes, ggml.ggml_backend_dev_get.restype = (ctypes.c_size_t,), ctypes.c_void_p
    kind_of = ggml.ggml_backend_dev_type
    kind_of.argtypes, kind_of.restype = (ctypes.c_void_p,), ctypes.c_int
    found = [int(ggml.ggml_backend_dev_get(number)) for number in range(ggml.ggml_backend_dev_count())]
    for kind in (_GPU, _CPU):
        if chosen := [device for device in found if kind_of(device) == kind]:
            return chosen
    raise EngineError("llama.cpp has no device on this machine; reinstall llama-cpp-python")


def _ggml() -> Any:
    """The functions of ggml, found through libllama: a wheel has each library under several names, as copies, and
    another name would load it a second time."""
    return bindings()._lib
