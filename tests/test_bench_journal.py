"""What a benchmark keeps on disk: the journal, the output folder, what a resumed run must share."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import IO, Any

import pytest

from edgespec.backends import Device
from edgespec.bench import report
from edgespec.bench.journal import Journal, holds_run
from edgespec.bench.output_folder import prepared
from edgespec.bench.records import AnswerRecord, Burst
from edgespec.errors import EdgespecError, OptionError
from edgespec.sampling import Sampling
from edgespec.terminal.bench import settings

from .benchruns import run as made_up


def kept(path: Path, *, resume: bool, **terms: str) -> Journal:
    return Journal(path, {"suite": "s", **terms}, resume=resume)


def an_answer(question: str) -> AnswerRecord:
    return AnswerRecord(question, "a", 0, "plain", False, 1, "x", 1, "d", 1.0, 0.5, (Burst(1.0, 1),))


def test_a_journal_is_gone_on_with(tmp_path: Path) -> None:
    path = tmp_path / "new" / "answers.jsonl"
    for n, resume in enumerate((False, True, True)):
        journal = kept(path, resume=resume)
        assert [each.question for each in journal.answers] == [str(i) for i in range(n)]
        journal.add(an_answer(str(n)))
        journal.close()
    journal = kept(path, resume=False)
    journal.close()
    assert not journal.answers
    assert len(path.read_text().splitlines()) == 1


def test_half_a_line_is_not_an_answer(tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    journal = kept(path, resume=False)
    journal.add(an_answer("1"))
    journal.add(an_answer("2"))
    journal.close()
    path.write_bytes(path.read_bytes()[:-20])
    journal = kept(path, resume=True)
    journal.add(an_answer("3"))
    journal.close()
    journal = kept(path, resume=True)
    assert [each.question for each in journal.answers] == ["1", "3"]
    journal.close()


def test_a_damaged_line_costs_one_answer(tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    journal = kept(path, resume=False)
    for question in "123":
        journal.add(an_answer(question))
    journal.close()
    terms, first, _, third = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(terms + first + b'{"question": \xff\n' + third)
    journal = kept(path, resume=True)
    journal.close()
    assert [each.question for each in journal.answers] == ["1", "3"]


class Full(io.RawIOBase):
    """A file on a disk with room for so many bytes."""

    def __init__(self, file: IO[bytes], room: int) -> None:
        super().__init__()
        self._file, self.room = file, room

    def write(self, data: Any) -> int:
        if not self.room:
            raise OSError(28, "No space left on device")
        taken = min(len(data), self.room)
        self.room -= taken
        return self._file.write(bytes(data[:taken]))

    def close(self) -> None:
        self._file.close()
        super().close()


def test_a_full_disk_costs_no_answer_that_was_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "answers.jsonl"
    journal = kept(path, resume=False)
    journal.add(an_answer("1"))
    monkeypatch.setattr(journal, "_file", Full(journal._file, 20))
    with pytest.raises(EdgespecError, match=r"No space left on device; free space and continue with --resume"):
        journal.add(an_answer("2"))
    journal.close()
    held = path.read_bytes()
    assert not held.endswith(b"\n")

    journal = kept(path, resume=True)
    monkeypatch.setattr(journal, "_file", Full(journal._file, 0))
    with pytest.raises(EdgespecError, match="No space left on device"):
        journal.add(an_answer("2"))
    journal.close()
    journal = kept(path, resume=True)
    assert [each.question for each in journal.answers] == ["1"]
    journal.add(an_answer("2"))
    journal.close()
    journal = kept(path, resume=True)
    journal.close()
    assert [each.question for each in journal.answers] == ["1", "2"]


@pytest.mark.parametrize("begun", [b"", b'{"sui', b'{"suite": "s", "targ'])
def test_a_journal_whose_first_line_was_not_written_is_begun_anew(begun: bytes, tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    path.write_bytes(begun)
    assert not holds_run(path)
    for resume in (False, True):
        assert prepared(tmp_path, resume=resume, force=False) == path
    journal = kept(path, resume=True)
    journal.add(an_answer("1"))
    journal.close()
    journal = kept(path, resume=True)
    journal.close()
    assert [each.question for each in journal.answers] == ["1"]


def test_answers_on_other_terms_are_not_gone_on_with(tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    kept(path, resume=False, target="a").close()
    with pytest.raises(OptionError, match="whose target was 'a', and now it is 'b'"):
        kept(path, resume=True, target="b")
    path.write_text("no JSON\n")
    with pytest.raises(OptionError, match="cannot be continued"):
        kept(path, resume=True)
    path.write_text("[1]\n")
    with pytest.raises(OptionError, match="cannot be continued"):
        kept(path, resume=True)
    (tmp_path / "file").touch()
    with pytest.raises(OptionError, match="cannot be written"):
        kept(tmp_path / "file" / "answers.jsonl", resume=False)


WRONG: dict[str, tuple[Any, ...]] = {
    "question": (None, 1),
    "replayed": (None, 1, "no"),
    "tokens": (None, "3", -1, 1.5, True, 10**400, float("nan"), [1]),
    "seconds": (None, "3", True, 10**400, float("nan"), float("inf"), {}),
    "joules": ("3", 10**400, [], float("nan")),
    "bursts": (None, 3, [3], [[1.0]], [[1.0, 2, 3]], [["a", 1]], [[10**400, 1]], [[1.0, 10**400]], {"1": 2}),
    "passes": (None, [[1, 1, 1]], [[1, 1, 1, "x"]], [[1, 1, -1, 1.0]]),
    "depths": (None, 3, [], [[1, 2]], {"model": 3}, {"model": [[1]]}, {"model": [[1, 10**400]]}),
    "strip": (None, [["a"]], [["a", 1]], [1]),
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in WRONG.items() for value in values])
def test_a_line_that_is_no_answer_is_left_out_and_written_anew(tmp_path: Path, name: str, value: Any) -> None:
    """And what stands behind it: whoever wrote it, it was not this run."""
    path = tmp_path / "answers.jsonl"
    journal = kept(path, resume=False)
    journal.add(an_answer("1"))
    journal.close()
    line = json.dumps(an_answer("2").as_dict() | {name: value})
    with path.open("a") as file:
        file.write(f"{line}\n")
    journal = kept(path, resume=True)
    assert [each.question for each in journal.answers] == ["1"]
    journal.add(an_answer("3"))
    journal.close()
    journal = kept(path, resume=True)
    assert list(journal.answers) == [an_answer("1"), an_answer("3")]
    journal.close()


@pytest.mark.parametrize(
    "line", ["3", "[]", "{}", "null", "[" * 100_000, "1" * 10_000, json.dumps(an_answer("2").as_dict() | {"more": 1})]
)
def test_a_line_of_another_form_is_left_out(tmp_path: Path, line: str) -> None:
    path = tmp_path / "answers.jsonl"
    kept(path, resume=False).close()
    with path.open("a") as file:
        file.write(f"{line}\n")
    journal = kept(path, resume=True)
    journal.close()
    assert not journal.answers
    path.write_text(f"{line}\n")
    with pytest.raises(OptionError, match=r"cannot be continued|whose suite was None") as caught:
        kept(path, resume=True)
    assert len(str(caught.value)) < 600


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """One that a run was written to."""
    journal = kept(tmp_path / "answers.jsonl", resume=False)
    journal.add(an_answer("1"))
    journal.close()
    report.write(made_up(), tmp_path)
    return tmp_path


@pytest.mark.parametrize("name", ["answers.jsonl", "bench.json", "report.md", "report.html"])
@pytest.mark.parametrize("text", ["# My report\n", '{"version": "2"}\n', "<!doctype html>\n<title>mine</title>"])
def test_files_of_others_are_not_overwritten(name: str, text: str, folder: Path) -> None:
    (folder / name).write_text(text)
    for resume in (False, True):
        with pytest.raises(
            OptionError, match=rf"{name} was not written by `edgespec bench`.*another --out, or --force"
        ):
            prepared(folder, resume=resume, force=False)
    assert (folder / name).read_text() == text
    assert prepared(folder, resume=False, force=True)


def test_a_folder_with_a_file_of_another_alone(tmp_path: Path) -> None:
    (tmp_path / "report.md").write_text("# Quarterly report\n")
    (tmp_path / "notes.txt").write_text("in nobody's way")
    with pytest.raises(OptionError, match=r"report.md was not written by"):
        prepared(tmp_path, resume=False, force=False)
    (tmp_path / "report.md").unlink()
    assert prepared(tmp_path, resume=False, force=False) == tmp_path / "answers.jsonl"


def test_what_is_no_file_is_in_the_way_whatever_is_said(tmp_path: Path) -> None:
    (tmp_path / "report.html").mkdir()
    with pytest.raises(OptionError, match=r"report.html is not a file"):
        prepared(tmp_path, resume=False, force=True)


def test_a_run_of_ours_is_gone_on_with_or_begun_anew_where_that_is_said(folder: Path) -> None:
    with pytest.raises(OptionError, match="holds a run; --resume continues it"):
        prepared(folder, resume=False, force=False)
    for resume, force in ((True, False), (False, True)):
        assert prepared(folder, resume=resume, force=force) == folder / "answers.jsonl"
    (folder / "answers.jsonl").unlink()
    for resume in (False, True):
        with pytest.raises(OptionError, match=r"holds the report of a run without its answers, answers.jsonl"):
            prepared(folder, resume=resume, force=False)
    assert prepared(folder, resume=False, force=True)


def test_settings_are_what_a_run_that_is_gone_on_with_must_share() -> None:
    usual = settings(Device(threads=2), 512, 128, Sampling())
    assert usual == "2 threads, context 512, at most 128 tokens, temperature 0"
    places: list[dict[str, Any]] = [{}, {"gpu_layers": 3}, {"draft_gpu_layers": 0}, {"provider": "cpu"}]
    places.append({"backend": "onnx"})
    told = {settings(Device(threads=2, **place), 512, 128, Sampling(seed=1)) for place in places}
    assert len(told) == 5
    assert "2 threads, context 512, at most 128 tokens, provider cpu, temperature 0, seed 1" in told
