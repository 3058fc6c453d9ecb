"""A folder of a model copied, and one of its files spoilt."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random

from . import spoil
from .place import Place


def copied(place: Place, folder: Path, name: str) -> Path:
    """A copy of `folder` that may be spoilt."""
    return Path(shutil.copytree(folder, place.folder / name))


def spoilt(rng: Random, folder: Path, changes: Sequence[Callable[[Random, Path], str]]) -> list[str]:
    """Change one or two things in a folder; what was done."""
    notes: list[str] = []
    for _ in range(rng.choice((1, 1, 2))):
        if not all(each.is_file() for each in folder.iterdir()):
            break  # the next change must not wait for a pipe
        try:
            notes.append(rng.choice(changes)(rng, folder))
        except (ValueError, OSError):
            break  # the file was spoilt before
    return notes


def spoilt_file(rng: Random, path: Path) -> str:
    """Spoil the file at `path` as a file, whatever it holds; what was done."""
    content = path.read_bytes() if path.is_file() else b""
    path.unlink(missing_ok=True)
    how = "with other bytes"
    match rng.randrange(8):
        case 0:
            how = "is not there"
        case 1:
            path.write_bytes(b"")
            how = "is empty"
        case 2:
            path.mkdir()
            how = "is a folder"
        case 3:
            path.symlink_to(path.with_name("nothing"))
            how = "leads nowhere"
        case 4 if hasattr(os, "mkfifo"):
            os.mkfifo(path)
            how = "is a pipe"
        case 5 if Path("/dev/zero").exists():
            path.symlink_to("/dev/zero")
            how = "is a device"
        case _:
            path.write_bytes(spoil.data(rng, content))
    return f"{path.name} {how}"


def spoilt_json(rng: Random, path: Path) -> str:
    """Spoil what a JSON file says; what was done."""
    old = json.loads(path.read_bytes()) if path.is_file() else {}
    new = old
    for _ in range(rng.randint(1, 2)):
        new = spoil.tree(rng, new)
    path.write_bytes(spoil.written(rng, new))
    keys = old if isinstance(old, dict) else {}  # it may have been spoilt before
    changed = [key for key in keys if not isinstance(new, dict) or new.get(key) != old[key]]
    if new == old:
        changed = ["bytes"]
    return f"{path.name}: {', '.join(map(str, changed[:4]))} {_said(new, changed)}"


def _said(new: object, changed: list[str]) -> str:
    if not isinstance(new, dict) or not changed or changed[0] not in new:
        return ""
    return f"is {new[changed[0]]!r:.150}"


def put(path: Path, *keys: str | int, value: object) -> None:
    """Put `value` where `keys` lead to in the JSON file at `path`, which need not be there."""
    content = json.loads(path.read_bytes()) if path.is_file() else {}
    place = content
    for key in keys[:-1]:
        place = place[key]
    place[keys[-1]] = value
    text = json.dumps(content).replace(f'"{spoil.DIGITS}"', "1" * 5000)
    path.write_text(text.replace(f'"{spoil.BRACKETS}"', "[" * 3000 + "]" * 3000), encoding="utf-8")
