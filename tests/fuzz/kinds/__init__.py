"""The kinds of inputs, by name.

A kind is a module with a `CORPUS`, inputs by name that once did harm, and `play(rng, place)`, which makes an input of
random numbers and runs it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random
from typing import Protocol

from ..place import Place
from . import checkpoint, faults, gguf, hub, kept, onnx, openvino, options, prompts, templates


class Kind(Protocol):
    """What a module of this package has."""

    CORPUS: Mapping[str, Callable[[Place], object]]

    def play(self, rng: Random, place: Place) -> None:
        """Make an input and run it. Raises `Wrong`, or whatever edgespec raises."""
        ...


KINDS: dict[str, Kind] = {
    "gguf": gguf,
    "onnx": onnx,
    "openvino": openvino,
    "checkpoint": checkpoint,
    "kept": kept,
    "hub": hub,
    "options": options,
    "prompts": prompts,
    "templates": templates,
}
#: And what only tests of the judge run.
ALL: dict[str, Kind] = {**KINDS, "faults": faults}
