"""What memory is free now, in all and on GPUs."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import psutil

from edgespec.backends.llama_library import bindings
from edgespec.errors import MissingPackage

_GPU, _INTEGRATED = 1, 2  # enum ggml_backend_dev_type of ggml-backend.h


@dataclass(frozen=True, slots=True)
class Gpu:
    """Bytes free on a GPU; `shared` where they are the CPU's own."""

    free: int
    shared: bool = False


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes free, and the GPUs that llama.cpp would use."""

    free: int
    gpus: tuple[Gpu, ...] = ()

    @property
    def shared(self) -> bool:
        """Whether what lies on a GPU takes of `free` too."""
        return bool(self.gpus) and all(gpu.shared for gpu in self.gpus)


def memory() -> Memory:
    """What is free. Programs' own caches of files count as free, for the system gives them up."""
    return Memory(psutil.virtual_memory().available, used_by_llamacpp(tuple(_gpus())))


def used_by_llamacpp(found: tuple[Gpu, ...]) -> tuple[Gpu, ...]:
    """Those it takes: integrated ones only where there is no other, as in its llama_model_load_from_file.

    One that tells of no free memory does not tell; what goes there is left to llama.cpp.
    """
    taken = tuple(gpu for gpu in found if not gpu.shared) or found[:1]
    return tuple(gpu for gpu in taken if gpu.free)


def _gpus() -> Iterator[Gpu]:
    """None where llama.cpp was built without, is not installed, or does not tell."""
    try:
        bindings()
        from ctypes import byref, c_int, c_size_t, c_void_p  # noqa: PLC0415

        from llama_cpp._ggml import libggml  # noqa: PLC0415
        from llama_cpp._ggml import libggml_base as base  # type: ignore[attr-defined, unused-ignore] # noqa: PLC0415

        get: Any = libggml.ggml_backend_dev_get
        get.restype, get.argtypes = c_void_p, [c_size_t]
        kind, told = base.ggml_backend_dev_type, base.ggml_backend_dev_memory
        kind.restype, kind.argtypes = c_int, [c_void_p]
        told.restype, told.argtypes = None, [c_void_p, c_void_p, c_void_p]
        # Apple's GPUs call themselves discrete.
        unified = platform.system() == "Darwin" and platform.machine() == "arm64"
        for i in range(int(libggml.ggml_backend_dev_count())):
            device = get(i)
            if (found := kind(device)) in (_GPU, _INTEGRATED):
                free, total = c_size_t(), c_size_t()
                told(device, byref(free), byref(total))
                yield Gpu(free.value, unified or found == _INTEGRATED)
    except (MissingPackage, ImportError, AttributeError, OSError):  # the bindings do not promise these functions
        return
