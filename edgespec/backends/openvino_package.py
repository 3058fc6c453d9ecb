"""OpenVINO as a library: loaded when first needed, and its devices."""

from __future__ import annotations

import re
from functools import cache
from importlib.util import find_spec
from typing import Any

from ..errors import MissingPackage, OptionError
from ..extras import import_package

CPU = "CPU"
_OLDEST = (2026, 4)  # older ones have no tree masks in the CPU's paged attention


@cache
def bindings() -> Any:
    """The module `openvino`.

    Raises:
        MissingPackage: it is not installed, does not load, or is too old.
    """
    openvino = import_package("openvino", "the backend openvino")
    version = tuple(int(number) for number in re.findall(r"\d+", openvino.__version__)[:2])
    if version < _OLDEST:
        raise MissingPackage(
            f"openvino {openvino.__version__.split('-')[0]} is too old: the backend needs "
            f"{'.'.join(map(str, _OLDEST))} or newer; update it with `pip install -U openvino`"
        )
    return openvino


def is_installed() -> bool:
    """Whether the package is there, without importing it."""
    return find_spec("openvino") is not None


@cache
def core() -> Any:
    """The `openvino.Core` of this process, which finds devices and compiles models."""
    return bindings().Core()


def chosen(asked: str) -> str:
    """The device by its OpenVINO name: the one `asked` for (cpu, gpu, npu, gpu.1 ...), the CPU for "auto".

    Raises:
        OptionError: there is no such device.
    """
    if asked == "auto":
        return CPU
    known = list(core().available_devices)
    wanted = asked.upper()
    if wanted not in known and f"{wanted}.0" not in known:
        raise OptionError(
            f"OpenVINO finds no device {asked!r} here, only {', '.join(sorted(name.lower() for name in known))}; "
            "choose one of those, or install its driver"
        )
    return wanted
