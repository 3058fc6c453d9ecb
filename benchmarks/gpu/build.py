"""Build llama.cpp of the kit, with its server, for the card of this machine, and put it into the Python packages.

Its libraries have no version in their names, so that each is one file. What was built is kept as `built-*.tar.gz`: the
next run on a card of the same architecture takes it from there and compiles nothing. Compiling needs no card.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .machine import NoCard, architecture, card, compiler

_OPTIONS = {
    "CMAKE_BUILD_TYPE": "Release",
    "CMAKE_PLATFORM_NO_VERSIONED_SONAME": "ON",
    "CMAKE_BUILD_WITH_INSTALL_RPATH": "ON",
    "CMAKE_INSTALL_RPATH": "$ORIGIN;$ORIGIN/../lib",
    "LLAMA_BUILD_TESTS": "OFF",
    "LLAMA_BUILD_EXAMPLES": "OFF",
    "LLAMA_BUILD_APP": "OFF",
    "LLAMA_BUILD_UI": "OFF",
    "LLAMA_USE_PREBUILT_UI": "OFF",
    "LLAMA_OPENSSL": "OFF",
}
_PACKAGE = "llama_cpp"
#: Python before 3.10.12 and 3.11.4 has no filters. What is unpacked was packed by this kit.
FILTER: dict[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}


class BuildFailed(Exception):
    """A tool is missing, or failed; the message names it."""


@dataclass(frozen=True)
class Build:
    """Where a build happens.

    Args:
        kit: the folder of the kit.
        work: the folder of the run.
        device: "cuda" or "cpu".
        architecture: that of the card, as CMake takes it, for another machine; empty for the card present.
    """

    kit: Path
    work: Path
    device: str
    architecture: str = ""

    @property
    def site(self) -> Path:
        """The folder of the kit's Python packages."""
        return self.work / "site"

    @property
    def server(self) -> Path:
        """llama-server."""
        return self.site / _PACKAGE / "bin" / "llama-server"

    @property
    def done(self) -> bool:
        """Whether everything is in place."""
        return (self.work / "built").exists()

    def install(self) -> None:
        """Put the kit's packages into `site`."""
        wheels = sorted(map(str, (self.kit / "wheels").glob("*.whl")))
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--no-cache-dir"]
        call([*pip, "--upgrade", "--target", str(self.site), *wheels], self.work / "install.log")

    def stored(self) -> Path | None:
        """What was built before for such a machine: in the work folder, or in the kit."""
        name = self.archive.name
        return next((path for path in (self.work / name, self.kit / name) if path.exists()), None)

    @property
    def archive(self) -> Path:
        """Where what is built is kept."""
        kind = self._architecture() if self.device == "cuda" else "cpu"
        return self.work / f"built-{kind}.tar.gz"

    def restore(self, stored: Path) -> None:
        """Take what was built before."""
        with tarfile.open(stored) as archive:
            archive.extractall(self.site / _PACKAGE, **FILTER)  # noqa: S202 - see FILTER
        (self.work / "built").touch()

    def compile(self, jobs: int) -> None:
        """Compile, keep the result and put it in place. A build that was cut off is gone on with.

        Raises:
            BuildFailed: CMake or a compiler is missing or fails.
        """
        source, folder = self.work / "llama.cpp", self.work / "build"
        if not source.exists():
            with tarfile.open(self.kit / "llama.cpp.tar.gz") as archive:
                archive.extractall(self.work / "unpacking", **FILTER)  # noqa: S202 - see FILTER
            (self.work / "unpacking" / "llama.cpp").rename(source)
        log = self.work / "build.log"
        call(["cmake", "-S", str(source), "-B", str(folder), *self.options()], log)
        targets = ["--target", "llama", "llama-server"]
        call(["cmake", "--build", str(folder), "--parallel", str(jobs), *targets], log)
        self._gather(folder / "bin")

    def options(self) -> list[str]:
        """The options of CMake."""
        chosen = dict(_OPTIONS)
        if self.device == "cuda":
            nvcc = compiler()
            if nvcc is None:
                raise BuildFailed("nvcc is missing; install the CUDA toolkit, or put its bin folder on the PATH")
            # The toolkit's libraries need not be where the loader looks, and CMake leaves their folder out of the path.
            chosen["CMAKE_INSTALL_RPATH"] += f";{Path(nvcc).resolve().parents[1] / 'lib64'}"
            chosen |= {"GGML_CUDA": "ON", "CMAKE_CUDA_ARCHITECTURES": self._architecture(), "CMAKE_CUDA_COMPILER": nvcc}
            chosen["GGML_CUDA_NCCL"] = "OFF"  # for several cards
            # The driver's library need not be where the linker looks, and a machine without a card has none.
            chosen["CMAKE_EXE_LINKER_FLAGS"] = "-Wl,--allow-shlib-undefined"
        if self.architecture:  # the processor is another one, too
            chosen["GGML_NATIVE"] = "OFF"
        generator = ["-G", "Ninja"] if shutil.which("ninja") else []
        return [*generator, *(f"-D{name}={value}" for name, value in chosen.items())]

    def _architecture(self) -> str:
        try:
            return self.architecture or architecture(card())
        except NoCard as error:
            raise BuildFailed(str(error)) from error

    def _gather(self, built: Path) -> None:
        """Keep libraries and server in an archive, and take them from there."""
        part = self.archive.with_suffix(".part")
        with tarfile.open(part, "w:gz", compresslevel=6) as archive:
            for path in sorted(built.glob("*.so")):
                archive.add(path, f"lib/{path.name}")
            archive.add(built / "llama-server", "bin/llama-server")
        part.replace(self.archive)
        self.restore(self.archive)


def call(command: Sequence[str], log: Path) -> None:
    """Run a program, whose output goes to the end of `log`.

    Raises:
        BuildFailed: it is missing, or fails; the message has the last lines of the log.
    """
    before = log.stat().st_size if log.exists() else 0
    with log.open("ab") as file:
        try:
            done = subprocess.run(command, stdout=file, stderr=subprocess.STDOUT, check=False, env=_environment())
        except OSError as error:
            raise BuildFailed(f"{command[0]} cannot be run ({error}); install it") from error
    if done.returncode:
        lines = log.read_bytes()[before:].decode("utf-8", "replace").splitlines()
        told = [line for line in lines if "error" in line.lower()][-3:] or lines[-3:]
        raise BuildFailed(f"{command[0]} failed with status {done.returncode}: {' | '.join(told)}; see {log}")


def _environment() -> dict[str, str]:
    """This process's environment without the packages of the kit, which are not for pip or CMake."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
