"""What packagers of apps need: PyInstaller finds its hook by the entry point `pyinstaller40` of this package."""

from __future__ import annotations

from pathlib import Path


def hook_dirs() -> list[str]:
    """The folder of the hook."""
    return [str(Path(__file__).parent)]
