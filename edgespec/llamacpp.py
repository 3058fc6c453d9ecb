"""llama.cpp as a library: loaded when first needed, silent, its complaints kept for our errors.

What runs models and what converts them share it: the log's callback is one for the whole process.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from .amx import disable_amx
from .errors import EngineError, MissingPackage

_LOG = logging.getLogger("edgespec.llama")
# enum ggml_log_level of ggml.h; the numbers in a comment of the bindings are out of date
_ERROR, _CONTINUED = 4, 5
_capture = threading.local()


@cache
def bindings() -> Any:
    """llama_cpp's low-level module, its backend started and its log silenced, once a process.

    The log goes to Python's logger "edgespec.llama", at level DEBUG.

    Raises:
        MissingPackage: llama-cpp-python is not installed, or does not load.
    """
    try:
        import llama_cpp.llama_cpp as low  # noqa: PLC0415 - the engine is loaded when it is first needed
    except (ImportError, OSError, RuntimeError) as error:  # a missing shared library shows as the latter two
        raise MissingPackage(
            f"llama-cpp-python cannot be loaded ({error}); install it with `pip install llama-cpp-python`"
        ) from error
    low.llama_log_set(_log_callback(low), None)
    disable_amx(low)
    low.llama_backend_init()
    return low


def require_no_fork() -> None:
    """For what is about to compute.

    Raises:
        EngineError: llama.cpp has computed before this process was forked. It would wait for threads of OpenMP that are
            not here.
    """
    if os.getpid() != _first_process():
        raise EngineError(
            "llama.cpp was in use before this process was forked, and its threads stayed behind, so it would hang; "
            "start processes by the method 'spawn', or load the first model after the fork"
        )


@cache
def _first_process() -> int:
    return os.getpid()


@contextmanager
def captured_errors() -> Iterator[list[str]]:
    """What llama.cpp logs as errors on this thread inside the block, one line each."""
    lines: list[str] = []
    _capture.lines = lines
    _capture.level = 0
    try:
        yield lines
    finally:
        _capture.lines = None


@cache
def _log_callback(low: Any) -> Any:
    def keep(level: int, text: bytes, _data: object) -> None:
        line = text.decode("utf-8", "replace").strip()
        if not line or line == ".":  # dots that draw a bar of progress
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
