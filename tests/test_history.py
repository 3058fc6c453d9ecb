"""What was typed in chats: who can read it, how much is kept, and that it can be forgotten."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from edgespec.errors import EdgespecError
from edgespec.terminal import history

unix = pytest.mark.skipif(sys.platform == "win32", reason="permissions of another kind")


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The usual place, empty."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.delenv("EDGESPEC_CACHE")
    return history.place()


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def kept(path: Path) -> list[str]:
    """The entries, the oldest first."""
    return list(history.opened(path).load_history_strings())[::-1]


def test_it_lies_where_edgespec_cache_says(state: Path, own_cache: Path) -> None:
    assert history.place() == own_cache / "chat_history" != state


@unix
def test_its_owner_alone_reads_it(state: Path) -> None:
    path = history.prepared()
    assert path == state
    history.opened(path).store_string("secret")
    assert kept(state) == ["secret"]
    assert mode(state) == 0o600
    assert mode(state.parent) == 0o700


@unix
def test_an_earlier_file_that_others_could_read_is_tightened(state: Path) -> None:
    state.parent.mkdir(parents=True)
    state.write_text("\n# 2026-01-01 00:00:00\n+earlier\n")
    state.chmod(0o644)
    assert history.prepared() == state
    assert mode(state) == 0o600
    assert kept(state) == ["earlier"]


@unix
def test_what_has_its_name_and_is_no_file_is_left_alone(state: Path) -> None:
    """A link to /dev/null is how one keeps nothing."""
    state.parent.mkdir(parents=True)
    state.symlink_to("/dev/null")
    before = mode(state)
    assert history.prepared() is None
    assert mode(state) == before
    assert history.forget() == 0
    state.unlink()
    os.mkfifo(state)
    assert history.prepared() is None
    state.unlink()
    state.mkdir()
    assert history.prepared() is None
    assert history.forget() == 0


def test_it_is_bounded(state: Path) -> None:
    path = history.prepared()
    opened = history.opened(path)
    for number in range(80):
        opened.store_string(f"{number} " + "x" * 9000 + "\n# no entry")
    assert state.stat().st_size <= 1 << 18
    entries = kept(state)
    assert entries[-1].startswith("79 ")
    numbers = [int(entry.split()[0]) for entry in entries]
    assert numbers == list(range(numbers[0], 80)), "whole entries, the newest"
    assert len(numbers) > 10
    opened.store_string("y" * (1 << 19))
    assert state.stat().st_size <= 1 << 18
    opened.store_string("after")
    assert kept(state) == ["after"]
    if sys.platform != "win32":
        assert mode(state) == 0o600
    assert [each.name for each in state.parent.iterdir()] == [state.name]


def test_what_cannot_be_kept_ends_no_chat(state: Path) -> None:
    path = history.prepared()
    opened = history.opened(path)
    opened.store_string("half a character \ud800")
    state.unlink()
    state.parent.rmdir()
    opened.store_string("no folder")
    history.opened(None).store_string("of this session alone")
    assert not state.exists()


def test_both_places_are_forgotten(state: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    history.prepared()
    monkeypatch.delenv("EDGESPEC_CACHE")
    history.prepared()
    monkeypatch.setenv("EDGESPEC_CACHE", str(own_cache))
    (own_cache / "chat_history.1-abcdef01.part").touch()
    assert history.forget() == 2
    assert not state.exists()
    assert list(own_cache.iterdir()) == []
    assert history.forget() == 0


def test_what_cannot_be_forgotten_is_said(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    history.prepared()

    def refuse(self: Path, missing_ok: bool = False) -> None:
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "unlink", refuse)
    with pytest.raises(EdgespecError, match=r"chat_history cannot be deleted: Permission denied; delete it yourself"):
        history.forget()
