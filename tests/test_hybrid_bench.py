"""The report on hybrid models: its models open, and a step that fails or takes too long is said to."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("benchmarks", reason="the benchmarks are not beside the tests, and no part of an install")

from benchmarks.hybrid_model import write
from benchmarks.hybrids import Step, run, steps
from edgespec.backends import Device, Interrupt, open_model

from .small_pair import SMALL_PAIR


@pytest.mark.parametrize(("architecture", "layers"), [("qwen35", 4), ("granitehybrid", 6)])
def test_its_models_open_with_the_demo_tokenizer_and_roll_back(tmp_path: Path, architecture: str, layers: int) -> None:
    path = tmp_path / "model.gguf"
    parameters = write(path, architecture, layers, 128)
    assert parameters * 34 / 32 <= path.stat().st_size < parameters * 34 / 32 + 1e6
    with (
        closing(open_model(path, Device(threads=1), Interrupt())) as model,
        closing(open_model(SMALL_PAIR.target, Device(threads=1), Interrupt())) as other,
    ):
        text = "Book a table for two."
        assert model.vocabulary.tokenize(text) == other.vocabulary.tokenize(text)
        session = model.session(256)
        assert session.replays == (architecture == "granitehybrid")
        session.prefill([5, 6, 7])
        first = session.decode([8, 9]).copy()
        session.rollback(3)
        assert np.allclose(session.decode([8, 9]), first, atol=1e-4)
        session.close()


def test_the_steps_make_what_they_use(tmp_path: Path) -> None:
    known = list(steps(tmp_path, 128, 60))
    made = {each.arguments[1] for each in known if each.arguments[0] == "benchmarks.hybrid_model"}
    used = {each.arguments[1] for each in known if each.arguments[0] == "benchmarks.categories"}
    assert made == used == {str(tmp_path / "qwen35.gguf"), str(tmp_path / "granitehybrid.gguf")}
    (head,) = (each.arguments[1] for each in known if "--head" in each.arguments)
    (benched,) = (each.arguments[2] for each in known if each.arguments[:2] == ["edgespec", "bench"])
    assert head == benched


def test_what_a_step_says_is_in_the_report() -> None:
    assert "failed with status 1: " in run(Step("", ["tests.nowhere"]), 60)
    assert run(Step("", ["this"]), 60).startswith("The Zen of Python")
    assert run(Step("", ["this"]), 0.5) == "left out: its time was up"
    assert run(Step("", ["timeit", "-n", "1", "import time; time.sleep(60)"]), 1.5).endswith(
        "ended after 2 seconds: its time was up"
    )
