"""Which models there are: the demo pair that ships with the package, and drafts that lie beside a target.

registry.py   pairs known by name: registry.toml, and the user's own
finding.py    from what was typed to files; drafts that are here
hub.py        files of a hub, whole and checked; faults.py says what went wrong
listing.py    what a repository holds, and which of it is wanted; growing.py, a file while it comes
stated.py     what a hub states, checked before it becomes part of a path
scouting.py   what a hub has, seen before it is fetched; drafts there, by the families of kin.py
header.py     what the head of a GGUF file says; facts.py, what is known of a model before it is loaded
fit.py        what fits: a plan of sizes.py, what a model takes, and memory.py, what is free
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from edgespec import pairfile

_DEMO = Path(__file__).parent / "demo"


class Pair(NamedTuple):
    """The files of a target and of its draft model, if it has one."""

    target: Path
    draft: Path | None


def demo() -> Pair:
    """The bundled pair: a narrow assistant for bookings and travel, 15 and 2 million parameters (demo/CARD.md)."""
    return Pair(_DEMO / "target.gguf", _DEMO / "draft.gguf")


def with_draft(target: Path) -> Pair:
    """What a pair file names, if `target` is one or a folder with one; else `target` and the draft model beside it.

    That is a file of its name with `.draft` before the suffix (`qwen.gguf`, `qwen.draft.gguf`), or one called
    `draft.gguf`, where there is one. Of a folder, the folders `NAME.draft` or `draft` beside it that hold a model.onnx.

    Raises:
        ModelFileError: a pair file that is not what it should be.
    """
    if (file := pairfile.at(target)) is not None:
        pair = pairfile.read(file)
        return Pair(pair.target, pair.draft)
    if not target.name:
        return Pair(target, None)
    stem, suffix = (target.name, "") if _is(Path.is_dir, target) else (target.stem, target.suffix)
    beside = (target.with_name(f"{stem}.draft{suffix}"), target.with_name(f"draft{suffix}"))
    return Pair(target, next((path for path in beside if _is_model(path) and path != target), None))


def _is_model(path: Path) -> bool:
    return (_is(Path.is_file, path) and bool(path.suffix)) or _is(Path.is_file, path / "model.onnx")


def _is(kind: Callable[[Path], bool], path: Path) -> bool:
    try:
        return kind(path)
    except OSError:  # what is wrong with the folder is told when the target is opened
        return False
