"""The page of `benchmarks.proof`, of runs that were made up."""

from __future__ import annotations

from pathlib import Path

from benchmarks.proof import Job, _page
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
