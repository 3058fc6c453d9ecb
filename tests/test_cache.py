"""One file for each thing kept: whole or not at all, and never an error."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from edgespec.errors import EdgespecError
from edgespec.storage.cache import Shelf, cache_folder, forget_kind

KEPT = {"figures": [1, 2.5, None], "text": "é😀"}


def shelf(kind: str = "kind", identity: str = "one", version: int = 3) -> Shelf:
    return Shelf(kind, identity, version)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_what_is_kept_is_read_again(own_cache: Path) -> None:
    assert shelf().read() == {}
    assert not own_cache.exists(), "asking leaves no trace"
    shelf().write(KEPT)
    assert shelf().read() == KEPT
    shelf().write({"other": 1})
    assert shelf().read() == {"other": 1}
    assert names(own_cache / "kind") == [shelf().path.name]


def test_things_are_kept_apart(own_cache: Path) -> None:
    shelves = [shelf(), shelf(kind="another"), shelf(identity="two"), shelf(identity="/a/\\b:\n" * 99)]
    for n, each in enumerate(shelves):
        each.write({"n": n})
    assert [each.read() for each in shelves] == [{"n": n} for n in range(len(shelves))]
    assert {each.path.parent.parent for each in shelves} == {cache_folder()} == {own_cache}
    assert shelf(version=4).read() == {}, "another form"
    shelf(version=4).write({"n": 9})
    assert shelf().read() == {}


@pytest.mark.parametrize(
    "change",
    [
        "",
        "{",
        "[]",
        "7",
        '"text"',
        "null",
        "\x00\xff",
        "[" * 100_000,
        "1" * 10_000,
        "{}",
        {"version": 2},
        {"version": "3"},
        {"version": None},
        {"identity": "two"},
        {"identity": ["one"]},
    ],
)
def test_what_is_broken_or_foreign_is_not_there(own_cache: Path, change: str | dict[str, Any]) -> None:
    shelf().write(KEPT)
    if isinstance(change, str):
        shelf().path.write_bytes(change.encode("latin-1"))
    else:
        shelf().path.write_text(json.dumps(json.loads(shelf().path.read_text()) | change))
    assert shelf().read() == {}
    shelf().write(KEPT)
    assert shelf().read() == KEPT, "it is written anew"


def test_a_folder_in_its_place_does_no_harm(own_cache: Path) -> None:
    shelf().path.mkdir(parents=True)
    shelf().write(KEPT)
    assert shelf().read() == {}
    assert names(own_cache / "kind") == [shelf().path.name], "no litter"


def test_half_a_file_is_not_there(own_cache: Path) -> None:
    shelf().write(KEPT)
    whole = shelf().path.read_bytes()
    for length in range(len(whole)):
        shelf().path.write_bytes(whole[:length])
        assert shelf().read() == {}


@pytest.mark.skipif(sys.platform == "win32", reason="Windows knows no such limit")
def test_a_full_disk_leaves_what_was_there_and_no_litter(own_cache: Path) -> None:
    """A real one, as far as the system goes: no file may grow beyond so many bytes."""
    shelf().write(KEPT)
    code = (
        "import resource; from edgespec.storage.cache import Shelf\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))\n"
        "Shelf('kind', 'one', 3).write({'figures': [7] * 4096})\n"
        "Shelf('kind', 'two', 3).write({'figures': [7] * 9})\n"
        "print('went on')\n"
    )
    done = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == "went on\n", done.stderr
    assert shelf().read() == KEPT
    assert shelf(identity="two").read() == {"figures": [7] * 9}, "what fits is written"
    assert names(own_cache / "kind") == sorted([shelf().path.name, shelf(identity="two").path.name])


def test_readers_and_writers_at_once_see_whole_files(own_cache: Path) -> None:
    shelf().write({"all": [0] * 3000})
    done = threading.Event()

    def write(n: int) -> None:
        while not done.is_set():
            shelf().write({"all": [n] * 3000})

    writers = [threading.Thread(target=write, args=[n]) for n in (1, 2)]
    for writer in writers:
        writer.start()
    seen = [shelf().read() for _ in range(150)]
    done.set()
    for writer in writers:
        writer.join()
    assert all(len(kept.get("all", ())) == 3000 and len(set(kept["all"])) == 1 for kept in seen)
    assert names(own_cache / "kind") == [shelf().path.name]


def test_forgotten_is_gone_with_what_a_killed_process_left(own_cache: Path) -> None:
    shelf().forget()
    shelf().write(KEPT)
    shelf(identity="two").write(KEPT)
    (own_cache / "kind" / f"{shelf().path.stem}abc.part").touch()
    shelf().forget()
    assert names(own_cache / "kind") == [shelf(identity="two").path.name]
    assert shelf(identity="two").read() == KEPT


def test_a_kind_is_forgotten_and_its_files_counted(own_cache: Path) -> None:
    assert forget_kind("kind") == 0
    for identity in ("one", "two"):
        shelf(identity=identity).write(KEPT)
    shelf("another").write(KEPT)
    (own_cache / "kind" / "abc.part").touch()
    assert forget_kind("kind") == 2
    assert names(own_cache / "kind") == []
    assert shelf("another").read() == KEPT


def test_what_cannot_be_forgotten_is_said(own_cache: Path) -> None:
    """A folder of that name: true for root as well, whom no permission stops."""
    shelf().path.mkdir(parents=True)
    for forget in (shelf().forget, lambda: forget_kind("kind")):
        with pytest.raises(EdgespecError, match=r"\.json cannot be deleted: .*; delete it yourself"):
            forget()


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="named pipes need a Unix")
def test_a_pipe_in_place_of_a_file_holds_nothing(own_cache: Path) -> None:
    """It was waited for."""
    shelf().path.parent.mkdir(parents=True)
    os.mkfifo(shelf().path)
    assert shelf().read() == {}
    shelf().write(KEPT)
    assert shelf().read() == KEPT
