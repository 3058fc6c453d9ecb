"""Whether a pair fits into memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from edgespec.llamacpp import bindings

from .header import header

_GPU = (1, 2)  # enum ggml_backend_dev_type of ggml-backend.h: GPU, and one that shares the CPU's memory
_BUFFERS = 300 << 20  # bytes of computing and of the program itself, about


@dataclass(frozen=True, slots=True)
class Plan:
    """Bytes: of the weights, of the caches (None: not known), and of memory that is free now, in all and on GPUs."""

    context: int
    weights: int
    cache: int | None
    free: int
    gpu: int | None

    @property
    def needed(self) -> int:
        return self.weights + (self.cache or 0) + _BUFFERS

    @property
    def fits(self) -> bool:
        return self.needed <= max(self.free, self.gpu or 0)


def plan(files: Sequence[Path], context: int) -> Plan:
    """What these models take together with a context of so many tokens, and what is there."""
    caches = []
    for path in files:
        with header(path) as head:
            caches.append(head.cache_bytes(context))
    cache = None if None in caches else sum(each or 0 for each in caches)
    return Plan(context, sum(size_of(path) for path in files), cache, psutil.virtual_memory().available, gpu_memory())


def size_of(path: Path) -> int:
    """Bytes of a model, of all its parts if it has several."""
    stem, part, rest = path.name.partition("-00001-of-")
    return sum(each.stat().st_size for each in path.parent.glob(f"{stem}-*-of-{rest}")) if part else path.stat().st_size


def gpu_memory() -> int | None:
    """Bytes free on the GPUs that llama.cpp uses; None where it has none, or does not tell."""
    bindings()
    try:
        from ctypes import byref, c_int, c_size_t, c_void_p  # noqa: PLC0415

        from llama_cpp._ggml import libggml  # noqa: PLC0415
        from llama_cpp._ggml import libggml_base as base  # type: ignore[attr-defined, unused-ignore] # noqa: PLC0415

        get: Any = libggml.ggml_backend_dev_get
        get.restype, get.argtypes = c_void_p, [c_size_t]
        kind, memory = base.ggml_backend_dev_type, base.ggml_backend_dev_memory
        kind.restype, kind.argtypes = c_int, [c_void_p]
        memory.restype, memory.argtypes = None, [c_void_p, c_void_p, c_void_p]
        found = None
        for i in range(int(libggml.ggml_backend_dev_count())):
            device = get(i)
            if kind(device) in _GPU:
                free, total = c_size_t(), c_size_t()
                memory(device, byref(free), byref(total))
                found = (found or 0) + free.value
    except (ImportError, AttributeError, OSError):  # these functions are not among those that the bindings promise
        return None
    return found
