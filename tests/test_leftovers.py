"""What killed processes left under temporary names is deleted, and nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from edgespec.converters.atomic_file import atomic_file, scratch, sweep
from edgespec.storage import leftovers
from edgespec.storage.cache import Shelf


@pytest.fixture
def dead() -> int:
    """The id of a process that has ended."""
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
        return process.pid


def much_later(monkeypatch: pytest.MonkeyPatch, seconds: float = 7200.0) -> None:
    now = time.time
    monkeypatch.setattr(time, "time", lambda: now() + seconds)


def test_only_what_is_old_and_of_no_living_process_is_deleted(
    tmp_path: Path, dead: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = leftovers.temporary(tmp_path / "model.gguf")
    theirs = tmp_path / f"model.gguf.{dead:x}-0123abcd.part"
    folder = tmp_path / f"model.{dead:x}-0123abcd.part"
    folder.mkdir()
    for path in (mine, theirs, folder / "weights"):
        path.touch()
    link = tmp_path / f"link.{dead:x}-0123abcd.part"
    link.symlink_to(tmp_path)
    every = [mine, theirs, folder, link]
    leftovers.sweep(every)
    assert all(path.exists() for path in every)
    much_later(monkeypatch)
    leftovers.sweep(every)
    assert [path.exists() for path in every] == [True, False, False, True]


def test_a_killed_conversion_is_swept_and_files_of_the_user_are_not(
    tmp_path: Path, dead: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = tmp_path / "model.gguf"
    own = ["model.gguf.mine.part", "model.gguf.backup.old", "model.gguf.0123abcd.bin", "other.gguf.0123abcd.part"]
    left = ["model.gguf.0123abcd.part", f"model.gguf.{dead:x}-0123abcd.part"]
    before = f"model.gguf.{dead:x}-0123abcd.old"
    for name in (*own, *left, before):
        (tmp_path / name).touch()
    much_later(monkeypatch)
    sweep(output)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([*own, before]), "the only one there is"
    with atomic_file(output, 1, force=False) as file:
        file.write(b"x")
    sweep(output)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([*own, "model.gguf"])


def test_what_a_killed_run_left_of_kept_things_and_reports_is_swept(
    own_cache: Path, dead: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    shelf = Shelf("kind", "one", 1)
    shelf.write({})
    for path in (shelf.path, own_cache / "report.md"):
        path.with_name(f"{path.name}.{dead:x}-0123abcd.part").touch()
    shelf.path.with_name(f"{shelf.path.stem}ab_defgh.part").touch()  # as earlier versions named them
    much_later(monkeypatch)
    shelf.write({})
    leftovers.put(own_cache / "report.md", "x")
    assert [path.name for path in shelf.path.parent.iterdir()] == [shelf.path.name]
    assert [path.name for path in own_cache.iterdir() if path.is_file()] == ["report.md"]


def test_scratch_folders_of_killed_runs_are_swept(tmp_path: Path, dead: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    code = "import os; from edgespec.converters.atomic_file import scratch\nwith scratch() as folder: os._exit(0)"
    subprocess.run([sys.executable, "-I", "-c", code], env={**os.environ, "TMPDIR": str(tmp_path)}, check=True)
    (left,) = tmp_path.iterdir()
    (tmp_path / "edgespec-bench").mkdir()
    much_later(monkeypatch)
    with scratch() as folder:
        assert not left.exists()
        with scratch():
            assert folder.exists(), "it is in use"
    assert [path.name for path in tmp_path.iterdir()] == ["edgespec-bench"]
