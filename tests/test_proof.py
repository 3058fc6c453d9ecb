"""The page of `benchmarks.proof`, of runs that were made up."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import proof
from benchmarks.proof import Job, Peers, _page
from edgespec.bench.peers import PEERS
from edgespec.bench.records import OURS, PLAIN, Pass

from .benchruns import answer, fabricated, run

JOB = Job("demo pair", Path("model.gguf"), "demo", 0.0, ())


def test_categories_of_few_questions_stand_without_an_interval() -> None:
    text = "\n".join(_page([(JOB, fabricated())]))
    (ours,) = (line for line in text.splitlines() if line.startswith("| edgespec | **"))
    cells = ours.split(" | ")
    assert [" to " in cell for cell in cells[1:]] == [True, True, True, False, True], "copy has six questions"


def test_what_was_never_measured_is_a_dash() -> None:
    """Rounds without a draft, of a run in which each drafted; and the other way round."""
    for drafted, shown in ((4, "| - | 4.0 | 1.0 |"), (0, "| 1.00 | - | - | - | - |")):
        passes = {PLAIN: Pass(0, 0, 1, 0.1), OURS: Pass(drafted, min(1, drafted), 1 + min(1, drafted), 0.1)}
        made = run([answer("a", name, 50, 5.0, passes=(each,) * 50) for name, each in passes.items()])
        made = run(made.answers, about={"machine": "", "versions": "", "date": ""})
        assert any(shown in line for line in _page([(JOB, made)]))


def test_other_engines_get_what_each_of_them_reads(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Every model is made by the program that its engine's users make it with, once."""
    called: list[list[str]] = []
    monkeypatch.setattr(proof, "_call", lambda *words: called.append([str(word) for word in words]))
    job = proof._peers_job(tmp_path / "target", tmp_path, "395M", Peers(Path("python"), tmp_path / "draft"))
    assert {*job.compare, *proof._SERVER, *proof._LLAMA_CPP_PYTHON} <= {*PEERS}
    assert [("optimum" in " ".join(words), "onnxruntime_genai" in " ".join(words)) for words in called] == [
        (False, False),  # the enlarged checkpoint
        (False, False),  # and the model for edgespec
        *[(True, False), (False, True)] * 2,  # of the target, and of the draft
    ]
    without = proof._peers_job(tmp_path / "target", tmp_path, "395M", Peers(Path("python"), None))
    assert "--draft-source" in job.options
    assert "--draft-source" not in without.options
