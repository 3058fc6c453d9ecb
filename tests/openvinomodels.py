"""Models opened in OpenVINO, for tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from edgespec import Device, Interrupt
from edgespec.backends import open_model
from edgespec.backends.openvino import OpenvinoModel

PROMPT = [5, 300, 41, *range(100, 120)]


def opened(folder: Path, interrupt: Interrupt | None = None, **options: Any) -> OpenvinoModel:
    device = Device(**{"threads": 1, "backend": "openvino", **options})
    model = open_model(folder, device, interrupt or Interrupt())
    assert isinstance(model, OpenvinoModel)
    return model
