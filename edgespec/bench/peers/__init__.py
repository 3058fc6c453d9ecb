"""Other engines as contenders, used through their public interfaces; each is optional.

setup          the settings that all peers share
llama_server   llama.cpp's server
llama_cpp, transformers, genai, openvino_genai   Python packages, each in a process of its own:
child          the contender, which communicates with the process
worker/        the programs that run in the process
process        a child process that ends when this one does
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ...errors import OptionError
from ..contender import Contender
from . import genai, llama_cpp, llama_server, openvino_genai, transformers
from .process import close_all
from .setup import Absent, Setup

__all__ = ["PEERS", "Absent", "Setup", "close_all", "peer"]

_MODULES = (llama_server, llama_cpp, transformers, genai, openvino_genai)
_STARTS = {name: module.start for module in _MODULES for name in module.TITLES}
#: By name, what a person calls it.
PEERS: Mapping[str, str] = {name: title for module in _MODULES for name, title in module.TITLES.items()}


def peer(name: str, setup: Setup) -> Contender:
    """The peer of this name, ready to answer.

    Raises:
        OptionError: there is none of this name.
        Absent: its program, package or model is missing.
        ContenderFailed: it failed to start.
    """
    if name not in _STARTS:
        raise OptionError(f"no peer {name!r}; there are {', '.join(PEERS)}")
    start: Callable[[str, Setup], Contender] = _STARTS[name]
    return start(name, setup)
