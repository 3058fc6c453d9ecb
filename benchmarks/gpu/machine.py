"""What is known of a machine: its card, the toolkit, processors and memory."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sysconfig
from pathlib import Path

_FIELDS = ("name", "memory.total", "driver_version", "compute_cap", "clocks.max.sm", "clocks.max.mem", "power.limit")
_SECONDS = 60.0


class NoCard(Exception):
    """There is no card, or no tool to ask it; the message says which."""


def card() -> dict[str, str]:
    """The first card, by nvidia-smi.

    Raises:
        NoCard: nvidia-smi is missing or fails.
    """
    tool = shutil.which("nvidia-smi")
    if tool is None:
        raise NoCard("nvidia-smi is not on the PATH: there is no driver; give --device cpu for a rehearsal")
    said = output([tool, f"--query-gpu={','.join(_FIELDS)}", "--format=csv,noheader"])
    if not said:
        raise NoCard("nvidia-smi names no card; give --device cpu for a rehearsal")
    values = (value.strip() for value in said.splitlines()[0].split(","))
    return dict(zip(_FIELDS, values, strict=True))


def architecture(found: dict[str, str]) -> str:
    """The architecture for CMake of a card: "86-real" for compute capability 8.6.

    Raises:
        NoCard: the driver does not tell it.
    """
    digits = found["compute_cap"].replace(".", "")
    if not digits.isdecimal():
        raise NoCard(
            f"nvidia-smi says compute capability {found['compute_cap']!r}; name it with --architecture 86-real"
        )
    return f"{digits}-real"


def compiler() -> str | None:
    """The path of nvcc: on the PATH, or where the toolkit is installed."""
    return shutil.which("nvcc") or shutil.which("nvcc", path="/usr/local/cuda/bin")


def libraries() -> list[str]:
    """Folders with CUDA's libraries that the loader may not know: the toolkit's, and those of Python packages."""
    nvcc = compiler()
    folders = [Path(nvcc).resolve().parents[1] / "lib64"] if nvcc else []
    folders += sorted(Path(sysconfig.get_path("purelib")).glob("nvidia/*/lib"))
    return [str(folder) for folder in folders if any(folder.glob("lib*.so*"))]


def facts(device: str) -> dict[str, object]:
    """This machine, for the page."""
    nvcc = compiler()
    release = re.search(r"release (\S+),", output([nvcc, "--version"])) if nvcc else None
    return {
        "device": device,
        "card": card() if device == "cuda" else None,
        "cuda": release[1] if release else None,
        "processor": _processor(),
        "cores": os.cpu_count(),
        "memory": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "system": platform.platform(),
        "python": platform.python_version(),
    }


def _processor() -> str:
    names = [line for line in _text(Path("/proc/cpuinfo")).splitlines() if line.startswith("model name")]
    return names[0].partition(":")[2].strip() if names else platform.machine()


def _text(path: Path) -> str:
    return path.read_text("utf-8", "replace") if path.exists() else ""


def output(command: list[str]) -> str:
    """What a program prints; empty if it fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if not done.returncode else ""
