"""The weights of a GGUF file: where they are computed, how they are loaded, and a key for the price of a pass."""

from __future__ import annotations

import hashlib
import os
import platform
from pathlib import Path
from typing import Any

from ..errors import Interrupted, ModelFileError, OptionError
from . import Device, Interrupt
from .llama_library import captured_errors


def gpu_layers(low: Any, device: Device) -> int:
    """How many layers to load onto a GPU, -1 for all.

    Raises:
        OptionError: `exact` together with a GPU, or a GPU that this llama.cpp was not built for.
    """
    if low.llama_supports_gpu_offload():
        if device.exact and device.gpu_layers:
            raise OptionError(
                f"exact is {device.exact}, but on a GPU passes of equal width may differ in their last bits; it needs "
                "the CPU: give gpu_layers 0"
            )
        return device.gpu_layers
    if device.gpu_layers > 0:
        raise OptionError(
            f"gpu_layers is {device.gpu_layers}, but this llama-cpp-python was built for the CPU alone; reinstall it "
            'with CMAKE_ARGS="-DGGML_CUDA=on" (or Metal, Vulkan), or leave gpu_layers out'
        )
    return 0


def load(low: Any, path: Path, params: Any, interrupt: Interrupt) -> Any:
    """The llama_model of the file at `path`.

    Raises:
        Interrupted: `interrupt` was set.
        ModelFileError: llama.cpp cannot load it; the message quotes its reason.
    """

    @low.llama_progress_callback  # type: ignore[untyped-decorator]
    def go_on(_fraction: float, _data: object) -> bool:
        return not interrupt.is_set

    params.progress_callback = go_on
    with captured_errors() as errors:
        model = low.llama_model_load_from_file(os.fsencode(path), params)
    if model:
        return model
    if interrupt.is_set:
        raise Interrupted
    reason = "; ".join(errors) or "llama.cpp gave no reason"
    raise ModelFileError(f"{path} cannot be loaded: {reason}; it may be truncated: download or convert it again")


def price_key(low: Any, path: Path, gpu_layers: int) -> str:
    """A key for the price of a pass: the header of the file with shapes and types, device, machine, engine version."""
    with path.open("rb") as file:
        head = hashlib.sha256(file.read(1 << 20))
    head.update(str(path.stat().st_size).encode())
    import llama_cpp  # noqa: PLC0415

    system = low.llama_print_system_info().decode()
    device = f"gpu_layers={gpu_layers}" if gpu_layers else "cpu"
    return f"{head.hexdigest()}|{device}|{platform.node()}|llama_cpp {llama_cpp.__version__}|{system}"
