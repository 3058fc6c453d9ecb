"""llama-cpp-python's own `Llama` class: plainly, and with its prompt look-up."""

from __future__ import annotations

import sys
from collections.abc import Mapping

from ...backends import amx
from .child import Child, PeerEngine
from .setup import Absent, Setup

#: Titles and tokens to draft: what its README names for GPUs, which is the default, and for CPUs.
_CONFIGURATIONS = {
    "llama-cpp-python": ("llama-cpp-python, plain", 0),
    "llama-cpp-python:lookup-10": ("llama-cpp-python, prompt look-up of 10", 10),
    "llama-cpp-python:lookup-2": ("llama-cpp-python, prompt look-up of 2", 2),
}
TITLES: Mapping[str, str] = {name: title for name, (title, _) in _CONFIGURATIONS.items()}


def start(name: str, setup: Setup) -> Child:
    """One of `TITLES`.

    Raises:
        ContenderFailed: it is missing, or fails to start.
    """
    title, lookup = _CONFIGURATIONS[name]
    if not setup.target.is_file():
        raise Absent(f"{name} runs GGUF files, and {setup.target} is none; give one as the target")
    given = {"target": str(setup.target.resolve()), "lookup": lookup, "amx": amx.__file__}
    return Child(PeerEngine(name, title, "llama_cpp", sys.executable, given, ("logit_bias",)), setup)
