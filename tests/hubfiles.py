"""The files of a repository for tests of a hub, and what lies in the cache."""

from __future__ import annotations

from pathlib import Path

import huggingface_hub.constants
import numpy as np
import pytest

from edgespec.models.hub import Hub

REPO = "org/small-GGUF"
MODEL = np.random.default_rng(3).bytes(300_000)
NAME = "small-Q4_K_M.gguf"
FILES = {NAME: MODEL, "small-Q8_0.gguf": MODEL * 2, "mmproj-Q4_K_M.gguf": MODEL[:5000], "README.md": b"a card\n"}


def leftovers(hub: Hub) -> list[str]:
    """All files of the cache but links, locks and references."""
    files = (path for path in hub.cache.rglob("*") if path.is_file() and not path.is_symlink())
    return sorted(path.name for path in files if path.parent.name == "blobs")


def everything_in(folder: Path) -> dict[str, bytes | None]:
    """All that lies below, and its content."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() if path.is_file() else None
        for path in folder.rglob("*")
        if ".locks" not in path.parts
    }


def links(monkeypatch: pytest.MonkeyPatch, *, allowed: bool) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_DISABLE_SYMLINKS", not allowed, raising=False)
