"""Which models there are: the demo pair that ships with the package, and drafts that lie beside a target.

registry.py   pairs known by name: registry.toml, and the user's own
finding.py    from what was typed to files; drafts that are here
hub.py        files of a hub, whole and checked; faults.py says what went wrong
listing.py    what a repository holds, and which of it is wanted; growing.py, a file while it comes
stated.py     what a hub states, checked before it becomes part of a path
scouting.py   what a hub has, seen before it is fetched; drafts there, by the families of kin.py
facts.py      what is known of a model before it is loaded
fit.py        what fits: a plan of sizes.py, what a model takes, and memory.py, what is free
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from edgespec.storage import pair_file as pairfile

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

    Raises:
        ModelFileError: a pair file that is not what it should be.
    """
    if (file := pairfile.at(target)) is not None:
        pair = pairfile.read(file)
        return Pair(pair.target, pair.draft)
    return Pair(target, pairfile.beside(target))
