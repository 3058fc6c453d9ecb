"""Optional packages: the extra of edgespec that installs each, and the error if one is missing.

`pip install edgespec` installs what `chat` and the conversion to GGUF need. Everything else is an extra of
pyproject.toml, is imported where it is used, and is checked for before the work that needs it begins.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib import import_module
from importlib.metadata import requires
from importlib.util import find_spec
from typing import Any

from .errors import MissingPackage

#: The extra that installs each package. Packages that are not listed are dependencies of edgespec itself.
EXTRAS = {
    "onnx": "onnx",
    "openvino": "openvino",
    "matplotlib": "bench",
    "llguidance": "grammar",
    "starlette": "serve",
    "uvicorn": "serve",
    "httpx": "serve",
    "prometheus_client": "serve",
    "torch": "distill",
    "transformers": "distill",
}
_OWN = re.compile(r"edgespec\[([^]]+)\]")


def require(package: str, purpose: str) -> None:
    """Check that `package` is installed, without importing it.

    Args:
        purpose: what needs the package; the error message begins with it.

    Raises:
        MissingPackage: it is not installed; the message has the command that installs it.
    """
    if find_spec(package) is None:
        raise _missing(package, purpose, "is not installed")


def import_package(package: str, purpose: str) -> Any:
    """Import `package`.

    Raises:
        MissingPackage: it is not installed, or its import fails; the message has the command that installs it.
    """
    try:
        return import_module(package)
    except ImportError as error:
        raise _missing(package, purpose, f"cannot be imported ({error})") from error


def install_line(extra: str) -> str:
    """The command that installs an extra. Without llama.cpp it names the packages alone: the extra of edgespec brings
    llama-cpp-python with it, which pip may have to compile."""
    if find_spec("llama_cpp") is not None:
        return f"pip install 'edgespec[{extra}]'"
    return " ".join(["pip install", *(f"'{each}'" for each in _requirements(extra))])


def _requirements(extra: str) -> Iterator[str]:
    for each in requires("edgespec") or ():
        requirement, _, marker = each.partition(";")
        if f"extra == '{extra}'" not in marker.replace('"', "'"):
            continue
        if own := _OWN.fullmatch(requirement.strip()):
            for name in own[1].split(","):
                yield from _requirements(name.strip())
        else:
            yield requirement.strip()


def _missing(package: str, purpose: str, problem: str) -> MissingPackage:
    extra = EXTRAS.get(package)
    line = install_line(extra) if extra else f"pip install {package}"
    return MissingPackage(f"{purpose} needs the package {package}, which {problem}; install it with `{line}`")
