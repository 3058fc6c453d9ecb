"""llama.cpp as a library: loaded when first needed, without output, its error messages captured.

Inference and conversion share it, because llama.cpp has one log callback for the whole process.
"""

from __future__ import annotations

import ctypes
import logging
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from ..errors import EngineError, MissingPackage
from .amx import disable_amx

_LOG = logging.getLogger("edgespec.llama")
# enum ggml_log_level of ggml.h; the numbers in a comment of the bindings are out of date
_ERROR, _CONTINUED = 4, 5
_SPINS = "1000"  # turns that a waiting thread spins, see `_wait_briefly`
_capture = threading.local()


@cache
def bindings() -> Any:
    """llama_cpp's low-level module. The first call initializes its backend and redirects its log.

    The log goes to Python's logger "edgespec.llama", at level DEBUG.

    Raises:
        MissingPackage: llama-cpp-python is not installed, or does not load.
    """
    _wait_briefly()
    try:
        import llama_cpp.llama_cpp as low  # noqa: PLC0415 - the engine is loaded when it is first needed
    except (ImportError, OSError, RuntimeError) as error:  # the latter two are raised for a missing shared library
        raise MissingPackage(
            f"llama-cpp-python cannot be loaded ({error}); install it with `pip install llama-cpp-python`"
        ) from error
    low.llama_log_set(_log_callback(low), None)
    _throw_failed_assertions(low)
    disable_amx(low)
    low.llama_backend_init()
    return low


def _wait_briefly() -> None:
    """Let threads of OpenMP that wait for others sleep after a moment, unless the user has said how they wait.

    GNU's OpenMP, with which llama.cpp is compiled on Linux, lets them spin for some milliseconds: beside other programs
    on as many cores, that is the time of the thread they wait for. On two cores beside two busy programs, passes of a
    1B in Q4_0 took 50 to 68 ms on average with 1,000 turns and 94 to 146 ms without (at most 84 and 456), on idle cores
    22 ms both ways. It is read when the library is loaded.
    """
    if not {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY"} & os.environ.keys():
        os.environ["GOMP_SPINCOUNT"] = _SPINS


def ggml_function(name: str) -> Any:
    """A function of ggml, which the bindings do not declare.

    It is found through libllama, for a wheel has each library under several names, as copies, and another name would
    load it a second time. Windows looks for it in the named library only.

    Raises:
        MissingPackage: llama-cpp-python is not installed, or does not load.
        AttributeError, OSError: this version has no such function.
    """
    low = bindings()
    if sys.platform != "win32":
        return getattr(low._lib, name)
    from llama_cpp import _ctypes_extensions  # noqa: PLC0415

    folder = Path(low.__file__).parent / "lib"
    libraries = [_ctypes_extensions.load_shared_library(each, folder) for each in ("ggml", "ggml-base")]
    return getattr(next((each for each in libraries if hasattr(each, name)), libraries[0]), name)


#: std::__throw_runtime_error(char const *) by platform: the C++ library, and the symbol of the function.
_THROWERS = {
    "linux": ("libstdc++.so.6", "_ZSt21__throw_runtime_errorPKc"),
    "darwin": ("/usr/lib/libc++.1.dylib", "_ZNSt3__121__throw_runtime_errorEPKc"),
}


def _throw_failed_assertions(low: Any) -> None:
    """Turn failed assertions of ggml into C++ exceptions, if the platform's C++ library exports a function that throws.

    llama.cpp catches exceptions while it loads a model and opens a context, and reports the failure. Elsewhere nothing
    catches them, and the process ends as it would without this.
    """
    try:
        library, symbol = _THROWERS[sys.platform]
        throw = getattr(ctypes.CDLL(library), symbol)
        install = low._lib.ggml_set_abort_callback  # the bindings do not declare it
    except (KeyError, OSError, AttributeError):
        return
    install.argtypes, install.restype = (ctypes.c_void_p,), ctypes.c_void_p
    install(ctypes.cast(throw, ctypes.c_void_p))


def require_no_fork() -> None:
    """Check that llama.cpp was not used before this process was forked.

    Raises:
        EngineError: it was. It would wait for threads of OpenMP that do not exist in this process.
    """
    if os.getpid() != _first_process():
        raise EngineError(
            "llama.cpp was in use before this process was forked, and a fork has none of its threads: it would hang; "
            "start processes by the method 'spawn', or load the first model after the fork"
        )


@cache
def _first_process() -> int:
    return os.getpid()


@contextmanager
def captured_errors() -> Iterator[list[str]]:
    """The errors that llama.cpp logs on this thread inside the block, one line each."""
    lines: list[str] = []
    _capture.lines = lines
    _capture.level = 0
    try:
        yield lines
    finally:
        _capture.lines = None


def text_of(function: Any, *arguments: Any) -> str | None:
    """Call a llama.cpp function that fills a text buffer; None if it returns no text."""
    room = 256
    while True:
        buffer = ctypes.create_string_buffer(room)
        n = function(*arguments, buffer, room)
        if n < 0:
            return None
        if n < room:
            return buffer.value.decode("utf-8", "replace")
        room = n + 1


@cache
def _log_callback(low: Any) -> Any:
    def keep(level: int, text: bytes, _data: object) -> None:
        decoded = text.decode("utf-8", "replace")  # it may quote a file, with line ends and escape sequences
        line = "".join(each if each.isprintable() else " " for each in decoded).strip()
        if not line or line == ".":  # dots are a progress bar
            return
        _LOG.debug("%s", line)
        lines = getattr(_capture, "lines", None)
        if lines is None:
            return
        if level == _CONTINUED and _capture.level == _ERROR and lines:
            lines[-1] += f" {line}"
            return
        _capture.level = level
        if level == _ERROR:
            lines.append(line)

    return low.llama_log_callback(keep)
