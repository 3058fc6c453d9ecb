"""The free memory of the machine, and of its GPUs."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from ctypes import byref, c_int, c_size_t, c_void_p
from dataclasses import dataclass
from typing import Any

import psutil

from edgespec.backends.llama_library import ggml_function
from edgespec.errors import MissingPackage

_GPU, _INTEGRATED = 1, 2  # enum ggml_backend_dev_type of ggml-backend.h


@dataclass(frozen=True, slots=True)
class Gpu:
    """Free bytes of a GPU; `shared` where it uses the CPU's memory."""

    free: int
    shared: bool = False


@dataclass(frozen=True, slots=True)
class MachineMemory:
    """Free bytes of the CPU's memory, and the GPUs that llama.cpp would use."""

    free: int
    gpus: tuple[Gpu, ...] = ()

    @property
    def shared(self) -> bool:
        """Whether the GPUs allocate from `free`."""
        return bool(self.gpus) and all(gpu.shared for gpu in self.gpus)


def machine_memory() -> MachineMemory:
    """The memory that is free now. The system's file cache counts as free."""
    return MachineMemory(psutil.virtual_memory().available, used_by_llamacpp(tuple(_gpus())))


def used_by_llamacpp(found: tuple[Gpu, ...]) -> tuple[Gpu, ...]:
    """The GPUs that llama.cpp uses: an integrated one only if there is no other, as in llama_model_load_from_file.

    A GPU that reports 0 bytes of free memory does not support the query, and is left out: llama.cpp then decides what
    it places there.
    """
    taken = tuple(gpu for gpu in found if not gpu.shared) or found[:1]
    return tuple(gpu for gpu in taken if gpu.free)


def _gpus() -> Iterator[Gpu]:
    """The GPUs that llama.cpp finds; none if it was built without GPU support, is not installed, or lacks the
    functions."""
    try:
        get: Any = ggml_function("ggml_backend_dev_get")
        get.restype, get.argtypes = c_void_p, [c_size_t]
        kind, memory = ggml_function("ggml_backend_dev_type"), ggml_function("ggml_backend_dev_memory")
        kind.restype, kind.argtypes = c_int, [c_void_p]
        memory.restype, memory.argtypes = None, [c_void_p, c_void_p, c_void_p]
        # Apple's GPUs report themselves as discrete.
        unified = platform.system() == "Darwin" and platform.machine() == "arm64"
        for i in range(int(ggml_function("ggml_backend_dev_count")())):
            device = get(i)
            if (found := kind(device)) in (_GPU, _INTEGRATED):
                free, total = c_size_t(), c_size_t()
                memory(device, byref(free), byref(total))
                yield Gpu(free.value, unified or found == _INTEGRATED)
    except (MissingPackage, AttributeError, OSError):  # these functions are not in the bindings' API
        return
