"""Build llama.cpp's RPC as a shared library beside the installed llama.cpp, from the sources of the same version."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..backends.llama_rpc import built_path, ggml_version, installed_version, library_folder
from ..errors import EngineError, OptionError
from ..storage.leftovers import temporary

_COMPILERS = ("c++", "g++", "clang++")
_PATIENCE = 600.0  # seconds
_SOURCES = ("ggml-rpc.cpp", "transport.cpp")
_DEFINED = ("GGML_BACKEND_DL", "GGML_BACKEND_SHARED", "GGML_BACKEND_BUILD", "GGML_SHARED")
_PART = re.compile(r"^set\(GGML_VERSION_(MAJOR|MINOR|PATCH) (\d+)\)", re.MULTILINE)
#: Python before 3.10.12 and 3.11.4 has no filters; `_wanted` names files within the folder only.
_FILTER: dict[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
_RELEASE = re.compile(r"^Version: (\S+)", re.MULTILINE)


def build(source: Path) -> Path:
    """Compile the library; returns its path.

    Args:
        source: the source distribution of llama-cpp-python as a .tar.gz or unpacked, or a folder of llama.cpp.

    Raises:
        OptionError: there are no such sources, or of another version than the installed llama.cpp.
        EngineError: there is no C++ compiler, or it fails.
    """
    with _unpacked(source) as folder:
        ggml = _ggml(folder, source)
        _require_version(folder, ggml, source)
        return _compiled(ggml)


@contextmanager
def _unpacked(source: Path) -> Iterator[Path]:
    if source.is_dir():
        yield source
        return
    with tempfile.TemporaryDirectory(prefix="edgespec-rpc-") as name:
        try:
            with tarfile.open(source) as archive:
                archive.extractall(name, members=_wanted(archive), **_FILTER)  # noqa: S202 - see _FILTER
        except (OSError, tarfile.TarError, EOFError) as error:
            raise OptionError(
                f"{source} is neither a folder nor a .tar.gz that can be read ({error}); give the source distribution "
                "of llama-cpp-python"
            ) from error
        folders = [path for path in Path(name).iterdir() if path.is_dir()]
        yield folders[0] if len(folders) == 1 else Path(name)


def _wanted(archive: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    """The files of ggml, and the one that names the version: the archive has thousands of others."""
    for member in archive:
        parts = Path(member.name).parts
        if ".." in parts or Path(member.name).is_absolute():
            raise tarfile.ReadError(f"it has {member.name}, outside of its folder")
        if not (member.isfile() or member.isdir()):
            continue
        if "ggml" in parts or parts[1:] == ("PKG-INFO",):
            yield member


def _ggml(folder: Path, source: Path) -> Path:
    for inside in ("vendor/llama.cpp/ggml", "ggml", "."):
        if (folder / inside / "src" / "ggml-rpc" / _SOURCES[0]).is_file():
            return folder / inside
    raise OptionError(
        f"{source} has no ggml/src/ggml-rpc/{_SOURCES[0]}; give the source distribution of llama-cpp-python "
        f"{installed_version()}, or the llama.cpp that it was built from"
    )


def _require_version(folder: Path, ggml: Path, source: Path) -> None:
    """OptionError unless the sources are those of the installed llama.cpp: structures in memory must be the same."""
    about, wanted = folder / "PKG-INFO", installed_version()
    found = _RELEASE.search(about.read_text("utf-8", "replace")) if about.is_file() else None
    if found is not None and found[1] != wanted:
        raise OptionError(f"{source} is of llama-cpp-python {found[1]}, and {wanted} is installed; give that version")
    parts = dict(_PART.findall((ggml / "CMakeLists.txt").read_text("utf-8", "replace")))
    stated, loaded = ".".join(parts.get(part, "?") for part in ("MAJOR", "MINOR", "PATCH")), ggml_version()
    if loaded.partition("-")[0] != stated:
        raise OptionError(
            f"{source} is of ggml {stated}, and {loaded} is installed; give the sources of llama-cpp-python {wanted}"
        )


def _compiled(ggml: Path) -> Path:
    output, libraries = built_path(), library_folder()
    output.parent.mkdir(parents=True, exist_ok=True)
    part = temporary(output)
    folder = ggml / "src" / "ggml-rpc"
    command = [
        _compiler(),
        *("-std=c++17", "-O2", "-fPIC", "-shared", "-w"),
        *(f"-D{name}" for name in _DEFINED),
        *(f"-I{each}" for each in (ggml / "include", ggml / "src", folder)),
        *(str(folder / name) for name in _SOURCES),
        *(f"-L{libraries}", "-lggml-base", f"-Wl,-rpath,{libraries}", "-pthread"),
        *("-o", str(part)),
    ]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_PATIENCE, check=False)  # noqa: S603
        if done.returncode:
            lines = [line for line in done.stderr.splitlines() if "error" in line] or done.stderr.splitlines()[-1:]
            raise EngineError(f"{command[0]} cannot build RPC: {'; '.join(lines[:2])}; are these unchanged sources?")
        part.replace(output)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise EngineError(f"{command[0]} cannot build RPC: {error}; name another compiler in CXX") from error
    finally:
        part.unlink(missing_ok=True)
    return output


def _compiler() -> str:
    if sys.platform == "win32":
        raise EngineError("RPC cannot be built beside the wheel on Windows; reinstall with CMAKE_ARGS=-DGGML_RPC=on")
    named = os.environ.get("CXX")
    found = next(filter(None, map(shutil.which, (named,) if named else _COMPILERS)), None)
    if found is None:
        raise EngineError(
            f"there is no C++ compiler ({named or ', '.join(_COMPILERS)}); install one, as `apt install g++`, or name "
            "it in CXX"
        )
    return found
