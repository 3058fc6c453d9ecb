"""The devices that OpenVINO computes on: the CPU, and Intel's GPUs.

On a GPU the KV cache lies in the GPU's memory, in a layout of its plugin: in blocks of 16 tokens, of 256 with sparse
attention. Source: the cache manager of OpenVINO GenAI.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import OptionError
from ..values import shown
from .openvino_package import core

#: Properties of a model compiled for any device. A cache of float16 halves that of float32; a quantized one has scales
#: among the numbers.
_CONFIG = {"PERFORMANCE_HINT": "LATENCY", "NUM_STREAMS": 1, "KV_CACHE_PRECISION": "f16"}


@dataclass(frozen=True, slots=True)
class ComputeDevice:
    """A device.

    Args:
        name: OpenVINO's own, for example CPU or GPU.1.
        config: properties of a model compiled for it.
        remote: whether the KV cache lies in the device's memory. Its rows cannot be moved, so there are no trees.
    """

    name: str
    config: Mapping[str, Any]
    remote: bool = False

    def memory(self) -> Any:
        """What creates tensors in the device's memory: an `openvino.RemoteContext`."""
        return core().get_default_context(self.name)


def chosen(provider: str, threads: int, group: int) -> ComputeDevice:
    """The device for `Device.provider`, in any case; "auto" is the CPU.

    Args:
        threads: of the CPU.
        group: the numbers of an activation that share a scale on the CPU.

    Raises:
        OptionError: OpenVINO does not have the device here, or it cannot run models with paged attention.
    """
    name = provider.lower()
    if name in ("auto", "cpu"):
        return _cpu(threads, group)
    present = [str(each).lower() for each in core().available_devices]
    usable = [each for each in present if _kind(each) in ("cpu", "gpu")]
    if _kind(name) == "npu":
        raise OptionError(
            "OpenVINO computes no paged attention on NPUs, nor passes of varying width; choose "
            f"{' or '.join(usable)}, or leave provider out"
        )
    if not _is_present(name, present):
        raise OptionError(
            f"OpenVINO finds no device {shown(provider)} here, only {', '.join(usable)}; install its driver, or leave "
            "provider out"
        )
    # Threads and groups are properties of the CPU's plugin alone, and a GPU computes in float16.
    return ComputeDevice(name.upper(), _CONFIG, remote=True)


def _cpu(threads: int, group: int) -> ComputeDevice:
    own = {
        # Computation in float32 keeps the output of a token independent of the pass's width.
        "INFERENCE_PRECISION_HINT": "f32",
        "INFERENCE_NUM_THREADS": threads,
        "ENABLE_CPU_PINNING": False,  # another engine may run on the same cores
        "DYNAMIC_QUANTIZATION_GROUP_SIZE": str(group),
    }
    return ComputeDevice("CPU", {**_CONFIG, **own})


def _is_present(name: str, present: Sequence[str]) -> bool:
    """Whether it is a GPU that is there. A single one is listed as "gpu", several as "gpu.0", "gpu.1" ..."""
    gpus = [each for each in present if _kind(each) == "gpu"]
    return bool(gpus) and name in (*gpus, "gpu", "gpu.0")


def _kind(name: str) -> str:
    return name.partition(".")[0]
