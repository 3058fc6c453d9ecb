"""Pack the kit: everything that the run needs, for a machine that reaches no network.

Packages come from the index that pip is set up for, as wheels for Linux on x86-64.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import requires, version
from pathlib import Path

from edgespec.errors import OptionError
from edgespec.storage.leftovers import temporary

from .sources import trim

MOST = 60 << 20  #: bytes that a kit may have
ROOT = Path(__file__).parents[2]
_SOURCE = ("benchmarks", "tests")  # modules that are no part of the package
_BUILT_THERE = ("llama-cpp-python", "onnxruntime", "onnxruntime-gpu")  # ONNX Runtime with CUDA alone has 260 MB
_UNUSED = ("hf-xet",)  # huggingface-hub needs it for downloads only
_BINDINGS = ("diskcache", "typing-extensions")  # what llama-cpp-python needs beside what edgespec needs
_PLATFORMS = tuple(f"manylinux{tag}_x86_64" for tag in ("_2_28", "_2_27", "_2_17", "2014", "_2_12", "2010", "1"))
_COMMAND = '''"""The command of this kit: README.md."""

import sys
from pathlib import Path

KIT = Path(__file__).resolve().parent
sys.path.insert(0, str(KIT / "source"))

from benchmarks.gpu.run import main  # noqa: E402

sys.exit(main(KIT))
'''
_README = """# Measure edgespec on a graphics card

Needed: Linux on x86-64, an NVIDIA driver, the CUDA toolkit, CMake 3.18 or later, a C++ compiler, and Python {pythons}
with pip. No network.

    python3 run.py --work ~/edgespec-gpu

Each call takes at most 9.5 minutes (`--minutes`); give the same command again until it says that all is done. The
results are `results.json` and `page.md` in the folder of `--work`. Keep `built-*.tar.gz` of that folder: copied into
the folder of the kit, it saves the next run the build on a card of the same architecture.

`--device cpu --small` rehearses the same steps without a card. `--head FILE` adds a trained head of the demo target to
the checks.
"""


@dataclass(frozen=True)
class Wanted:
    """What goes into a kit.

    Args:
        pythons: versions of Python to bring packages for, as "3.12".
        absent: names of packages that the machine has already.
        bindings: the source distribution of llama-cpp-python as a .tar.gz; None downloads it.
        built: archives of earlier builds.
    """

    pythons: Sequence[str] = ("3.12",)
    absent: Sequence[str] = ()
    bindings: Path | None = None
    built: Sequence[Path] = ()


def pack(output: Path, wanted: Wanted) -> dict[str, int]:
    """Make the kit in the new folder `output`; returns the bytes of its parts.

    Raises:
        OptionError: the folder exists, a package cannot be had, or the kit is too large.
    """
    if output.exists():
        raise OptionError(f"{output} exists; give the name of a new folder")
    part = temporary(output)
    try:
        part.mkdir(parents=True)
        _fill(part, wanted)
        sizes = {path.name: size(path) for path in sorted(part.iterdir())}
        check_size(sizes)
        part.rename(output)
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return sizes


def check_size(sizes: dict[str, int]) -> None:
    """OptionError if the kit is too large."""
    if (total := sum(sizes.values())) > MOST:
        parts = ", ".join(f"{name} {each / 1e6:.1f}" for name, each in sizes.items())
        raise OptionError(
            f"the kit has {total / 1e6:.1f} MB, and at most {MOST / 1e6:.1f} may travel ({parts}); give fewer "
            "--python, or leave out what the machine has, as --without numpy"
        )


def size(path: Path) -> int:
    """Bytes of a file, or of all files in a folder."""
    return sum(each.stat().st_size for each in ([path] if path.is_file() else path.rglob("*")) if each.is_file())


def _fill(folder: Path, wanted: Wanted) -> None:
    wheels = folder / "wheels"
    wheels.mkdir()
    with tempfile.TemporaryDirectory() as name:
        bindings = wanted.bindings or _downloaded_bindings(Path(name))
        trim(bindings, folder / "llama.cpp.tar.gz")
        _wheel(_without_library(bindings, Path(name) / "bindings"), wheels)
    _wheel(ROOT, wheels)
    for python in wanted.pythons:
        _download([name for name in requirements() if _name(name) not in wanted.absent], python, wheels)
    for name in (*wanted.absent, *_UNUSED):
        for path in wheels.glob(f"{name.replace('-', '_')}-*.whl"):
            path.unlink()
    for path in sorted(wheels.glob("*.whl")):
        _compress(path)
    for name in _SOURCE:
        ignored = shutil.ignore_patterns("__pycache__", "traces", "fuzz", "pair", "*.jsonl")
        shutil.copytree(ROOT / name, folder / "source" / name, ignore=ignored)
    for archive in wanted.built:
        shutil.copy(archive, folder)
    (folder / "run.py").write_text(_COMMAND, "utf-8")
    (folder / "README.md").write_text(_README.format(pythons=" or ".join(wanted.pythons)), "utf-8")
    about = {"edgespec": version("edgespec"), "commit": _commit(), **asdict(wanted)}
    (folder / "kit.json").write_text(json.dumps(about, indent=1, default=str) + "\n", "utf-8")


def requirements() -> Iterator[str]:
    """What edgespec and llama-cpp-python need at run time, as pip takes it, without what is built on the machine."""
    for each in requires("edgespec") or ():
        requirement, _, marker = each.partition(";")
        if "extra" not in marker and "python_version" not in marker and _name(requirement) not in _BUILT_THERE:
            yield requirement.strip()
    yield from _BINDINGS


def _name(requirement: str) -> str:
    return re.split(r"[^A-Za-z0-9._-]", requirement.strip(), maxsplit=1)[0].lower().replace("_", "-")


def _downloaded_bindings(folder: Path) -> Path:
    name = f"llama-cpp-python=={version('llama-cpp-python')}"
    _pip("download", "--no-deps", "--no-binary", "llama-cpp-python", "--dest", str(folder), name)
    return next(folder.glob("*.tar.gz"))


def _without_library(bindings: Path, folder: Path) -> Path:
    """The Python part of llama-cpp-python."""
    import tarfile  # noqa: PLC0415

    with tarfile.open(bindings) as archive:
        parts = ("pyproject.toml", "README.md", "LICENSE.md")
        members = [
            member
            for member in archive
            if (inside := member.name.partition("/")[2]) in parts or inside.startswith("llama_cpp/")
        ]
        archive.extractall(folder, members=members, filter="data")
    return next(folder.iterdir())


def _wheel(source: Path, wheels: Path) -> None:
    settings = ["--config-settings", "wheel.cmake=false"] if source != ROOT else []
    _pip("wheel", "--no-deps", *settings, "--wheel-dir", str(wheels), str(source))


def _download(names: Sequence[str], python: str, wheels: Path) -> None:
    platforms = [word for each in _PLATFORMS for word in ("--platform", each)]
    only = ["--only-binary", ":all:", "--implementation", "cp", "--python-version", python]
    _pip("download", *only, *platforms, "--find-links", str(wheels), "--dest", str(wheels), *names)


def _compress(wheel: Path) -> None:
    """Recompress a wheel by LZMA, which pip can read, if that is smaller: NumPy's has 11 MB in place of 16."""
    part = temporary(wheel)
    with zipfile.ZipFile(wheel) as before, zipfile.ZipFile(part, "w") as after:
        for each in before.infolist():
            after.writestr(each, before.read(each), zipfile.ZIP_LZMA)
    if part.stat().st_size < wheel.stat().st_size:
        part.replace(wheel)
    else:
        part.unlink()


def _pip(*arguments: str) -> None:
    command = [sys.executable, "-m", "pip", *arguments, "--quiet", "--disable-pip-version-check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        last = " | ".join(done.stderr.strip().splitlines()[-3:])
        raise OptionError(f"pip {arguments[0]} failed: {last}; is the package index reached?")


def _commit() -> str:
    done = subprocess.run(
        ["git", "-C", str(ROOT), "describe", "--always", "--dirty"],  # noqa: S607
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout.strip()
