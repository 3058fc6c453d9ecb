"""Keeps ggml from using AMX tile instructions. A process of the benchmark runs this file alone: it imports no edgespec.

Builds of ggml by GCC leave the tile configuration on the stack uninitialised (the compiler removes the stores) and end
by SIGSEGV in the first matrix product on processors with AMX (llama.cpp issue 20824, pull request 26954). Only server
processors have AMX. ggml falls back to its AVX-512 kernels, which keep the same repacked weights as elsewhere.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_CPU = 0  # enum ggml_backend_dev_type
_SMALL = 2048  # bytes, MINSIGSTKSZ: less than a signal frame with tile registers takes
_DISABLED = 2  # SS_DISABLE


class _SignalStack(ctypes.Structure):
    """stack_t of signal.h on Linux."""

    _fields_ = (("pointer", ctypes.c_void_p), ("flags", ctypes.c_int), ("size", ctypes.c_size_t))


def disable_amx(low: Any) -> None:
    """Make ggml choose its weight layouts without AMX, once, before a model is loaded.

    ggml requests the tile registers from the kernel when its CPU buffer types are first listed, and does not use AMX if
    the kernel refuses. Linux refuses while a thread has a signal stack that is too small for them, so the buffer types
    are listed while this thread has one.
    """
    library = getattr(low, "_lib", None)  # the bindings declare none of these functions
    has_amx = getattr(library, "ggml_cpu_has_amx_int8", None)
    if sys.platform == "linux" and has_amx is not None and has_amx():
        with _small_signal_stack(), _silent_stderr():
            _list_buffer_types(library)


def uses_amx(low: Any) -> bool:
    """Whether ggml would still use weight layouts for AMX.

    The kernel does not refuse once another library, such as ONNX Runtime, has the tile registers. Models must then be
    loaded without ggml's own weight layouts.
    """
    library = getattr(low, "_lib", None)
    if sys.platform != "linux" or getattr(library, "ggml_cpu_has_amx_int8", None) is None:
        return False
    return b"AMX" in _list_buffer_types(library)


def _list_buffer_types(library: Any) -> list[bytes]:
    """The names of ggml's weight layouts for the CPU. ggml chooses them at the first call."""
    for name in ("ggml_backend_dev_by_type", "ggml_backend_dev_backend_reg", "ggml_backend_reg_get_proc_address"):
        getattr(library, name).restype = ctypes.c_void_p
    device = ctypes.c_void_p(library.ggml_backend_dev_by_type(_CPU))
    registry = ctypes.c_void_p(library.ggml_backend_dev_backend_reg(device))
    address = library.ggml_backend_reg_get_proc_address(registry, b"ggml_backend_dev_get_extra_bufts")
    if not address:
        return []
    types = ctypes.CFUNCTYPE(ctypes.POINTER(ctypes.c_void_p), ctypes.c_void_p)(address)(device)
    library.ggml_backend_buft_name.restype = ctypes.c_char_p
    names: list[bytes] = []
    while types and types[len(names)]:
        names.append(library.ggml_backend_buft_name(ctypes.c_void_p(types[len(names)])))
    return names


@contextmanager
def _small_signal_stack() -> Iterator[None]:
    libc = ctypes.CDLL(None)
    memory = ctypes.create_string_buffer(_SMALL)
    before = _SignalStack()
    small = _SignalStack(ctypes.addressof(memory), 0, _SMALL)
    if libc.sigaltstack(ctypes.byref(small), ctypes.byref(before)):  # the process has the tile registers already
        yield
        return
    try:
        yield
    finally:
        if not before.pointer:
            before.flags = _DISABLED
        libc.sigaltstack(ctypes.byref(before), None)


@contextmanager
def _silent_stderr() -> Iterator[None]:
    """ggml reports the refusal on the C library's stderr, which is not buffered."""
    try:
        before = os.dup(2)
    except OSError:  # a process without a standard error
        yield
        return
    null = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(null, 2)
        yield
    finally:
        os.dup2(before, 2)
        os.close(before)
        os.close(null)
