"""onnxruntime as a library: loaded when first needed, without output, and its execution providers."""

from __future__ import annotations

import contextlib
import ctypes
import io
import platform
import re
from functools import cache
from typing import Any

from ..errors import MissingPackage, OptionError

CPU, CUDA = "cpu", "cuda"
#: For the options of a session: x86 processors without VNNI multiply signed by unsigned bytes in 16 bits, which
#: overflow; with this onnxruntime multiplies unsigned ones there, slower and right. Other processors ignore it.
UNSATURATED = ("session.x64quantprecision", "1")
_OLDEST = (1, 23)  # older ones lack 4-bit embeddings or trees, or compute wrong results in wide passes (1.19)
_QUIET = 4  # log level "fatal": failures raise exceptions
_SUFFIX = "ExecutionProvider"


@cache
def bindings() -> Any:
    """The module `onnxruntime` with its log silenced, from the package onnxruntime or onnxruntime-gpu.

    Raises:
        MissingPackage: it is not installed, does not load, or is too old.
    """
    try:
        import onnxruntime as ort  # noqa: PLC0415 - the engine is loaded when it is first needed
    except (ImportError, OSError) as error:
        raise MissingPackage(
            f"onnxruntime cannot be loaded ({error}); install it with `pip install onnxruntime`"
        ) from error
    version = tuple(int(number) for number in re.findall(r"\d+", ort.__version__)[:2])
    if version < _OLDEST:
        raise MissingPackage(
            f"onnxruntime {ort.__version__} is too old: models need {'.'.join(map(str, _OLDEST))} or newer; update it "
            "with `pip install -U onnxruntime`"
        )
    ort.set_default_logger_severity(_QUIET)
    return ort


def providers() -> dict[str, str]:
    """The execution providers of this onnxruntime: its own names by the short names for users."""
    return {name.removesuffix(_SUFFIX).lower(): name for name in bindings().get_available_providers()}


def chosen(asked: str, *, half: bool) -> str:
    """The execution provider: the one `asked` for, or for "auto" CUDA if there is a GPU and the model is in half
    precision, which CUDA's attention requires, else the CPU.

    Raises:
        OptionError: this onnxruntime has no such provider.
    """
    known = providers()
    if asked == "auto":
        return CUDA if half and CUDA in known and has_nvidia() else CPU
    if asked not in known:
        raise OptionError(
            f"this onnxruntime runs on {', '.join(sorted(known))}, not on {asked!r}; choose one of those, or install "
            "the package with it (onnxruntime-gpu for cuda, in place of onnxruntime)"
        )
    if asked == CUDA and not half:
        raise OptionError(
            "CUDA computes attention in half precision only; convert the checkpoint with --quant fp16 (or int4-fp16, "
            "int8-fp16), or leave provider cuda out"
        )
    return asked


def load_cuda() -> None:
    """Load CUDA's libraries from the folders of pip; onnxruntime itself searches the system only."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(Exception):
        bindings().preload_dlls()


@cache
def has_nvidia() -> bool:
    """Whether NVIDIA's driver finds a GPU."""
    count = ctypes.c_int(0)
    try:
        driver = ctypes.CDLL("nvcuda.dll" if platform.system() == "Windows" else "libcuda.so.1")
        return driver.cuInit(0) == 0 and driver.cuDeviceGetCount(ctypes.byref(count)) == 0 and count.value > 0
    except (OSError, AttributeError):
        return False
