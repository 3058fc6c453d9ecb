"""OpenVINO as a library, loaded when first needed."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, cast

from ..errors import MissingPackage
from ..extras import import_package

_TELEMETRY = "openvino_telemetry"
_PLACE = re.compile(r"(Caught exception: )?(Exception from|Check '[^']*' failed at) \S+?\.[ch]pp:\d+: ?")
_OLDEST = (2026, 4)  # older ones have no tree masks in the CPU's paged attention


@cache
def bindings() -> Any:
    """The module `openvino`.

    Raises:
        MissingPackage: it is not installed, does not load, or is too old.
    """
    with _without_telemetry():
        openvino = import_package("openvino", "the backend openvino")
    version = tuple(int(number) for number in re.findall(r"\d+", openvino.__version__)[:2])
    if version < _OLDEST:
        raise MissingPackage(
            f"openvino {openvino.__version__.split('-')[0]} is too old: the backend needs "
            f"{'.'.join(map(str, _OLDEST))} or newer; update it with `pip install -U openvino`"
        )
    return openvino


@contextmanager
def _without_telemetry() -> Iterator[None]:
    """Importing openvino reports to a server of its makers that it was imported, and writes an identifier into the
    user's home folder, unless the package for that is missing. edgespec works offline and reports nothing."""
    present = _TELEMETRY in sys.modules
    before = sys.modules.get(_TELEMETRY)
    cast(dict[str, object], sys.modules)[_TELEMETRY] = None  # an import of it then fails
    try:
        yield
    finally:
        del sys.modules[_TELEMETRY]
        if present and before is not None:
            sys.modules[_TELEMETRY] = before


@cache
def core() -> Any:
    """The `openvino.Core` of this process, which compiles models."""
    return bindings().Core()


def reason(error: Exception) -> str:
    """The last 300 characters of OpenVINO's message, on one line and without places in its sources."""
    return _PLACE.sub("", " ".join(str(error).split()))[-300:]
