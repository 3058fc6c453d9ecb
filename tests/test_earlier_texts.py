"""What is kept of earlier sessions, and what is not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from edgespec.errors import EdgespecError, OptionError
from edgespec.runtime.earlier_texts import EarlierTexts


def memory(identity: str = "model", limit: int = 100) -> EarlierTexts:
    return EarlierTexts(identity, 1000, limit)


def filled(*texts: list[int], limit: int = 100) -> list[list[int]]:
    for text in texts:
        memory(limit=limit).add(text)
    return memory(limit=limit).texts()


def test_texts_are_kept_and_recalled(own_cache: Path) -> None:
    assert memory().texts() == []
    assert not own_cache.exists(), "asking leaves no trace"
    assert filled([1, 2, 3], [4, 999]) == [[1, 2, 3], [4, 999]]
    assert memory("another").texts() == []
    assert memory().path.parent == own_cache / "memory"
    assert [path.name for path in memory().path.parent.iterdir()] == [memory().path.name]


def test_any_sequence_of_tokens_is_a_text(own_cache: Path) -> None:
    memory().add(np.array([1, 2]))  # type: ignore[arg-type]
    memory().add((3,))
    memory().add([])
    assert memory().texts() == [[1, 2], [3]]


def test_a_chat_that_goes_on_takes_its_own_place(own_cache: Path) -> None:
    assert filled([1, 2], [7, 8], [1, 2, 3]) == [[7, 8], [1, 2, 3]]
    assert filled([1, 2, 3]) == [[7, 8], [1, 2, 3]]
    assert filled([1, 2]) == [[7, 8], [1, 2, 3], [1, 2]]


def test_the_oldest_go_first(own_cache: Path) -> None:
    assert filled([1] * 4, [2] * 3, [3] * 3, limit=10) == [[1] * 4, [2] * 3, [3] * 3]
    assert filled([4], limit=10) == [[2] * 3, [3] * 3, [4]]
    assert memory(limit=5).texts() == [[3] * 3, [4]]
    assert filled([5] * 10, limit=10) == [[5] * 10]
    assert filled([*range(12)], limit=10) == [[*range(2, 12)]]
    assert memory(limit=4).texts() == [[*range(8, 12)]], "kept under another limit"


def test_the_file_is_bounded(own_cache: Path) -> None:
    for n in range(30):
        memory().add([n + 900] * 10)
    assert len(memory().texts()) == 10
    assert memory().path.stat().st_size < 800


def test_an_interrupted_write_leaves_nothing(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        memory().add([1])
    assert list(memory().path.parent.iterdir()) == []


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such modes")
def test_only_the_user_may_read_it(own_cache: Path) -> None:
    old = os.umask(0)
    try:
        filled([1], [2])
    finally:
        os.umask(old)
    assert memory().path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    "change",
    [
        "",
        "{",
        "[]",
        "7",
        "null",
        "\x00\xff",
        "[" * 100_000,
        '{"texts": [[1]]}',
        {"version": 0},
        {"version": 2},
        {"identity": "another"},
        {"texts": None},
        {"texts": 3},
        {"texts": [3]},
        {"texts": {"1": [2]}},
        {"texts": ["12"]},
        {"texts": [["1"]]},
        {"texts": [[1], [1.0]]},
        {"texts": [[True]]},
        {"texts": [[-1]]},
        {"texts": [[1000]]},
        {"texts": [[10**400]]},
        {"texts": [[float("nan")]]},
        {"texts": [[[1]]]},
        {"texts": [""]},
        {"texts": [{}]},
    ],
)
def test_a_file_that_is_not_ours_is_ignored(own_cache: Path, change: str | dict[str, object]) -> None:
    """Above all tokens that the model does not know: they would reach it in a draft."""
    assert filled([1, 2]) == [[1, 2]]
    file = memory().path
    if isinstance(change, str):
        file.write_bytes(change.encode("latin-1"))
    else:
        file.write_text(json.dumps(json.loads(file.read_text()) | change))
    assert memory().texts() == []
    assert filled([3]) == [[3]]


def test_a_truncated_file_is_ignored(own_cache: Path) -> None:
    filled([*range(50)])
    whole = memory().path.read_bytes()
    for length in range(0, len(whole), 7):
        memory().path.write_bytes(whole[:length])
        assert memory().texts() == []


def test_forgotten_is_gone_from_the_disk(own_cache: Path) -> None:
    memory().forget()
    filled([1, 2])
    memory("another").add([3])
    with pytest.MonkeyPatch.context() as killed:
        killed.setattr(Path, "replace", lambda *_paths: None)
        killed.setattr(Path, "unlink", lambda *_path, **_options: None)
        memory().add([4])
    assert len(list(memory().path.parent.iterdir())) == 3, "a text that never got its name"
    memory().forget()
    assert memory().texts() == []
    assert [path.name for path in memory().path.parent.iterdir()] == [memory("another").path.name]
    memory().forget()


def test_what_cannot_be_forgotten_is_said(own_cache: Path) -> None:
    """A folder of that name: true for root as well, whom no permission stops."""
    memory().path.mkdir(parents=True)
    with pytest.raises(EdgespecError, match=r"\.json cannot be deleted: .*; delete it yourself"):
        memory().forget()


def test_a_cache_that_cannot_be_written_does_no_harm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("here")
    for folder in ("file", "file/below"):
        monkeypatch.setenv("EDGESPEC_CACHE", str(tmp_path / folder))
        assert filled([1]) == []
        memory().forget()
    assert (tmp_path / "file").read_text() == "here"


def test_a_full_disk_leaves_what_was_there(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    filled([1])

    def full(*_arguments: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", full)
        assert filled([2]) == [[1]]
    assert [path.name for path in memory().path.parent.iterdir()] == [memory().path.name]


def test_two_writers_never_leave_half_a_file(own_cache: Path) -> None:
    """Another process writes while this one reads and writes: each text is whole, and some of both are there."""
    code = (
        "import sys; from edgespec.runtime.earlier_texts import EarlierTexts\n"
        "kept = EarlierTexts('model', 1000, 60000)\n"
        "print('go', flush=True)\n"
        "for n in range(60): kept.add([n, *[500] * 300])\n"
    )
    other = subprocess.Popen([sys.executable, "-I", "-c", code], stdout=subprocess.PIPE, text=True)
    assert other.stdout is not None
    other.stdout.readline()
    mine, seen = memory(limit=60_000), []
    for n in range(60):
        mine.add([n, *[600] * 300])
        seen.append(mine.texts())
    assert other.wait() == 0
    other.stdout.close()
    assert all(seen)
    texts = [text for texts in (*seen, mine.texts()) for text in texts]
    assert {(len(text), *set(text[1:])) for text in texts} == {(301, 500), (301, 600)}
    assert [path.name for path in mine.path.parent.iterdir()] == [mine.path.name]


def test_threads_may_add_too(own_cache: Path) -> None:
    writers = [threading.Thread(target=memory().add, args=[[n] * 5]) for n in range(8)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    texts = memory().texts()
    assert texts
    assert all(text == text[:1] * 5 for text in texts)


def test_a_limit_that_makes_no_sense() -> None:
    with pytest.raises(OptionError, match="limit is 0"):
        memory(limit=0)
