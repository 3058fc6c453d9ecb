"""Two conversions to the same name at once, and those that are killed: what has the name is always whole."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from edgespec.converters import atomic_folder, convert
from edgespec.errors import ConversionError

from . import checkpoints

OUTPUTS = {"gguf": "model.gguf", "onnx": "model"}
#: Two ways to convert, so that what is of one can be told from what is of the other.
WAYS = {"gguf": ("q8_0", "q4_0"), "onnx": ("int8", "int4")}
#: Converts a step for each line that it is sent, and says what came of it.
DRIVEN = """
    import sys
    from pathlib import Path
    from edgespec.converters import convert
    from edgespec.errors import ConversionError
    source, output, fmt, quantization, force = sys.argv[1:]
    try:
        work = convert(Path(source), Path(output), fmt=fmt, quantization=quantization, force=force == "True")
        for _ in sys.stdin:
            step = next(work, None)
            print("step" if step else "done", flush=True)
            if step is None:
                break
    except ConversionError as error:
        print(error, flush=True)
"""


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkpoints.llama(tmp_path_factory.mktemp("at-once") / "source")


@pytest.fixture(params=list(OUTPUTS))
def fmt(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def output(tmp_path: Path, fmt: str) -> Path:
    (tmp_path / "out").mkdir()
    return tmp_path / "out" / OUTPUTS[fmt]


@pytest.fixture(scope="module")
def expected(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], list[dict[str, bytes]]]:
    """What each way of a format makes, undisturbed."""
    folder = tmp_path_factory.mktemp("expected")

    def made(fmt: str) -> list[dict[str, bytes]]:
        found = []
        for way in WAYS[fmt]:
            output = folder / way / OUTPUTS[fmt]
            if not output.exists():
                output.parent.mkdir(exist_ok=True)
                list(convert(source, output, fmt=fmt, quantization=way))
            found.append(content(output))
        return found

    return made


def content(output: Path) -> dict[str, bytes]:
    """The files of an output by name."""
    files = [output] if output.is_file() else sorted(path for path in output.rglob("*") if path.is_file())
    return {path.name: path.read_bytes() for path in files}


def names(output: Path) -> list[str]:
    return sorted(path.name for path in output.parent.iterdir())


class Driven:
    """A conversion in a process of its own that goes a step when it is told."""

    def __init__(self, source: Path, output: Path, fmt: str, way: str, *, force: bool) -> None:
        command = [sys.executable, "-I", "-c", textwrap.dedent(DRIVEN), source, output, fmt, way, str(force)]
        self._process = subprocess.Popen([*map(str, command)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.said = ""
        self.steps = 0

    @property
    def goes_on(self) -> bool:
        return self.said in {"", "step"}

    def step(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with suppress(BrokenPipeError):  # it ended at once, and what it said is still to be read
            self._process.stdin.write("\n")
            self._process.stdin.flush()
        self.said = self._process.stdout.readline().strip()
        self.steps += 1

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate()


@pytest.fixture
def driven(source: Path, output: Path, fmt: str) -> Iterator[Callable[..., Driven]]:
    begun: list[Driven] = []

    def begin(way: int, *, force: bool) -> Driven:
        begun.append(Driven(source, output, fmt, WAYS[fmt][way], force=force))
        return begun[-1]

    yield begin
    for each in begun:
        each.kill()


@pytest.mark.parametrize("forced", [(False, False), (True, False), (False, True), (True, True)])
def test_two_at_once(
    forced: tuple[bool, bool],
    driven: Callable[..., Driven],
    output: Path,
    fmt: str,
    expected: Callable[[str], list[dict[str, bytes]]],
) -> None:
    """Step by step in turns. One that may overwrite does; one that may not, and comes second, says so."""
    both = [driven(way, force=force) for way, force in enumerate(forced)]
    last = None
    while any(each.goes_on for each in both):
        for way, each in enumerate(both):
            if each.goes_on:
                each.step()
                last = way if each.said == "done" else last
    assert all(each.steps > 3 for each in both), "they did work at the same time"
    assert content(output) == expected(fmt)[last if last is not None else -1]
    assert names(output) == [output.name]
    first = 0 if both[0].steps <= both[1].steps else 1
    assert both[first].said == "done"
    second = both[1 - first]
    assert second.said == "done" if forced[1 - first] else "meanwhile" in second.said or "exists" in second.said


@pytest.mark.parametrize("steps", [3, 6])
def test_one_that_is_killed_leaves_nothing_of_the_name(
    steps: int,
    source: Path,
    driven: Callable[..., Driven],
    output: Path,
    fmt: str,
    expected: Callable[[str], list[dict[str, bytes]]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    killed = driven(1, force=False)
    for _ in range(steps):
        killed.step()
    killed.kill()
    (left,) = names(output)
    assert left.endswith(".part")
    list(convert(source, output, fmt=fmt, quantization=WAYS[fmt][0]))
    assert content(output) == expected(fmt)[0]
    assert names(output) == [output.name, left], "it may be of one that goes on"
    (output.parent / f"{output.name}.mine.part").write_text("mine")
    much_later(monkeypatch)
    list(convert(source, output, fmt=fmt, quantization=WAYS[fmt][1], force=True))
    assert content(output) == expected(fmt)[1]
    assert names(output) == [output.name, f"{output.name}.mine.part"]


def much_later(monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.time
    monkeypatch.setattr(time, "time", lambda: now() + 2 * 3600)


def test_one_that_is_killed_keeps_what_was_there(
    driven: Callable[..., Driven],
    source: Path,
    output: Path,
    fmt: str,
    expected: Callable[[str], list[dict[str, bytes]]],
) -> None:
    list(convert(source, output, fmt=fmt, quantization=WAYS[fmt][0]))
    killed = driven(1, force=True)
    for _ in range(6):
        killed.step()
    assert len(names(output)) == 2
    killed.kill()
    assert content(output) == expected(fmt)[0]


def test_folders_that_are_replaced_in_the_same_moment(tmp_path: Path) -> None:
    """Many times over, with nothing but the last step: each finds a whole folder, and no other is left."""
    output = tmp_path / "model"
    failed: list[BaseException] = []

    def replace(text: str) -> None:
        try:
            for _ in range(100):
                with atomic_folder.atomic_folder(output, 2, replace=True) as part:
                    (part / "a").write_text(text)
                    (part / "b").write_text(text)
        except BaseException as error:  # noqa: BLE001 - a thread's errors are told by the test
            failed.append(error)

    threads = [threading.Thread(target=replace, args=(text,)) for text in "123"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    assert names(output) == ["model"]
    assert (output / "a").read_text() == (output / "b").read_text()


def test_a_folder_that_comes_and_goes_in_the_last_moment_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process creates it before the rename, and a third one moves it away after that."""
    output, rename = tmp_path / "model", Path.rename
    refused: list[Path] = []

    def busy(self: Path, target: Path) -> Path:
        if not refused:
            refused.append(self)
            raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY))
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", busy)
    with atomic_folder.atomic_folder(output, 2, replace=True) as part:
        (part / "a").write_text("whole")
    assert refused
    assert names(output) == ["model"]
    assert (output / "a").read_text() == "whole"


def test_a_folder_that_comes_in_the_last_moment_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the last look and the rename."""
    output = tmp_path / "model"
    rename = Path.rename

    def late(self: Path, target: Path) -> Path:
        output.mkdir()
        (output / "theirs").write_text("theirs")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", late)
    with (
        pytest.raises(ConversionError, match="meanwhile"),
        atomic_folder.atomic_folder(output, 1, replace=False) as part,
    ):
        (part / "ours").write_text("ours")
    assert names(output) == ["model"]
    assert [path.name for path in output.iterdir()] == ["theirs"]
