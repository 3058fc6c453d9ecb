"""`edgespec bench` as a subprocess."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from edgespec.bench.records import Run

from .commandline import EDGESPEC


def bench(folder: Path, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [EDGESPEC, "bench", "--out", folder, "--max-tokens", "8", "--threads", "2", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


def run_of(folder: Path) -> Run:
    found: dict[str, Any] = json.loads((folder / "bench.json").read_text("utf-8"))
    del found["version"]
    return Run.of(found)


def test_the_demo_pair_on_both_suites(tmp_path: Path) -> None:
    done = bench(tmp_path / "a", "--limit", "1", "--compare", "lookup,k=2,llama-server", "--llama-server", tmp_path)
    assert done.returncode == 0, done.stderr
    assert "Left out: llama-server: " in done.stderr
    said, *paths = done.stdout.splitlines()
    assert [Path(path).name for path in paths] == ["bench.json", "report.md", "report.html"]
    run = run_of(tmp_path / "a")
    # The measured prices decide whether anything is drafted within so few tokens.
    drafted = any(each.drafted for answer in run.by("edgespec") for each in answer.passes)
    assert said.startswith(f"edgespec {'came to' if drafted else 'drafted nothing over'} ")
    assert [each.name for each in run.contenders if not each.skipped] == ["plain", "edgespec", "lookup", "k=2"]
    assert [each.name for each in run.contenders if each.skipped] == ["llama-server"]
    plain = {(each.question, each.turn): each.digest for each in run.by("plain")}
    assert len(plain) == 11
    for name in ("edgespec", "lookup", "k=2"):
        assert {(each.question, each.turn): each.digest for each in run.by(name)} == plain
    assert any(each.passes and each.depths for each in run.by("k=2"))
    assert run.prices is not None
    assert "edgespec bench --out" in run.about["command"]


def test_replayed_answers(tmp_path: Path) -> None:
    done = bench(tmp_path / "a", "--limit", "1", "--suite", "replay")
    assert done.returncode == 0, done.stderr
    run = run_of(tmp_path / "a")
    assert run.categories == ["edit", "summary", "passage"]
    assert all(each.replayed and each.tokens == 8 for each in run.answers)
    assert len({each.digest for each in run.answers}) == 3
    assert "replayed" in (tmp_path / "a" / "report.md").read_text("utf-8")


def test_broken_lines_and_long_prompts_are_in_the_report_and_the_exit_status(tmp_path: Path) -> None:
    questions = [
        {"question_id": 1, "category": "a", "turns": ["Book a table."]},
        {"question_id": 2, "category": "a", "turns": ["table " * 2100]},
    ]
    suite = tmp_path / "mine.jsonl"
    suite.write_text("\n".join([json.dumps(questions[0]), "{broken", json.dumps(questions[1])]))
    done = bench(tmp_path / "a", "--suite", suite)
    assert done.returncode == 1, done.stderr
    assert "Traceback" not in done.stderr
    run = run_of(tmp_path / "a")
    assert [each.where for each in run.problems] == [f"{suite}, line 2", "question 2, turn 1"]
    assert {each.question for each in run.answers} == {"1"}


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--suite", "none"), "no suite none"),
        (("--compare", "vllm"), "--compare has 'vllm'"),
        (("--limit", "0"), "--limit is 0"),
        (("--max-tokens", "0"), "--max-tokens is 0"),
        (("no-such.gguf",), "no model at"),
        (("--draft", "none", "--compare", "model"), "no drafter 'model'"),
    ],
)
def test_what_makes_no_sense_is_one_line(arguments: tuple[str, ...], says: str, tmp_path: Path) -> None:
    done = bench(tmp_path / "a", *arguments)
    assert done.returncode in (1, 2)
    assert says in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr
    assert not (tmp_path / "a").exists()


@pytest.mark.skipif(sys.platform == "win32", reason="SIGINT is sent as Unix has it")
def test_ctrl_c_leaves_a_report_and_resume_goes_on(tmp_path: Path) -> None:
    out = tmp_path / "a"
    command = [EDGESPEC, "bench", "--out", str(out), "--threads", "2", "--max-tokens", "24", "--limit", "3"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    journal = out / "answers.jsonl"
    _until(process, lambda: journal.is_file() and journal.read_text().count("\n") > 5)
    os.kill(process.pid, signal.SIGINT)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 130, stderr
    assert stderr.strip() == "Error: interrupted"
    early = run_of(out)
    assert early.interrupted
    assert 5 <= len(early.answers) < 42
    assert "nterrupted" in (out / "report.md").read_text("utf-8")
    again = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert again.returncode in (1, 2)
    assert f"{out} holds a run; --resume continues it, --force begins a new one" in again.stderr
    resumed = subprocess.run([*command, "--resume"], capture_output=True, text=True, check=False, timeout=120)
    assert resumed.returncode == 0, resumed.stderr
    whole = run_of(out)
    assert not whole.interrupted
    assert list(whole.answers[: len(early.answers)]) == list(early.answers)
    asked = [(each.question, each.turn, each.contender) for each in whole.answers]
    assert len(asked) == len(set(asked))
    assert re.search(r"same text as plain", (out / "report.md").read_text("utf-8"))


@pytest.mark.skipif(sys.platform == "win32", reason="sizes of files are limited as Unix has it")
def test_a_run_on_a_full_disk_stops_with_a_line_and_resume_goes_on(tmp_path: Path) -> None:
    """A limit on the size of files fills the disk in the middle of an answer."""
    import resource  # noqa: PLC0415 - not on Windows

    def limited() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (5000, resource.RLIM_INFINITY))

    out = tmp_path / "a"
    command = [EDGESPEC, "bench", "--out", str(out), "--threads", "2", "--max-tokens", "8", "--limit", "1"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120, preexec_fn=limited)
    assert done.returncode == 1
    assert re.fullmatch(r"Error: .*answers.jsonl cannot be written: File too large; .* --resume.*\n", done.stderr)
    kept = (out / "answers.jsonl").read_bytes()
    assert len(kept) == 5000
    whole = kept[: kept.rindex(b"\n") + 1]
    assert whole.count(b"\n") > 2
    done = subprocess.run([*command, "--resume"], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    assert (out / "answers.jsonl").read_bytes().startswith(whole)
    asked = [(each.question, each.turn, each.contender) for each in run_of(out).answers]
    assert len(asked) == len(set(asked)) == 22


def test_a_run_is_begun_anew_only_where_that_is_said(tmp_path: Path) -> None:
    suite, out = tmp_path / "one.jsonl", tmp_path / "a"
    suite.write_text(json.dumps({"question_id": 1, "category": "a", "turns": ["Book a table."]}))
    done = bench(out, "--suite", suite, "--resume")
    assert done.returncode == 0, done.stderr
    assert f"{out} holds no run to continue: this is a new one" in done.stderr
    before = (out / "answers.jsonl").read_bytes()
    assert bench(out, "--suite", suite, "--force", "--resume").returncode == 1
    assert bench(out, "--suite", suite).returncode == 1
    assert (out / "answers.jsonl").read_bytes() == before
    done = bench(out, "--suite", suite, "--force")
    assert done.returncode == 0, done.stderr
    assert (out / "answers.jsonl").read_bytes() != before


def _until(process: subprocess.Popen[str], reached: Callable[[], bool]) -> None:
    while not reached():
        if process.poll() is not None:
            pytest.fail(f"it ended early: {process.communicate()[1]}")
