"""Draft models that the command line finds, and those with another vocabulary."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from edgespec import models

from . import checkpoints
from .commandline import PROMPT, events, prompts_in, refused, run
from .pair_checkpoints import checkpoint_of
from .respelt import respelt
from .small_pair import SMALL_PAIR


def test_draft_auto_takes_the_file_beside_the_model(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").symlink_to(SMALL_PAIR.target)
    assert models.with_draft(tmp_path / "m.gguf").draft is None
    (tmp_path / "m.draft.gguf").symlink_to(SMALL_PAIR.draft or "")
    drafters = {name for e in events(tmp_path / "m.gguf", "-p", PROMPT, "--k", "3") for name in e.get("drafters", ())}
    assert "model" in drafters


def test_a_draft_that_only_happens_to_lie_there_is_left_out(tmp_path: Path) -> None:
    """Found by its name it may be another model's."""
    source = checkpoints.llama(tmp_path / "source")
    assert run("convert", source, "--out", tmp_path / "draft.gguf").returncode == 0
    (tmp_path / "m.gguf").symlink_to(SMALL_PAIR.target)
    done = run("chat", tmp_path / "m.gguf", "-p", PROMPT, "--temp", "0")
    assert done.returncode == 0
    assert done.stdout.strip()
    assert "left out: target and draft have different vocabularies: token" in done.stderr
    assert THROUGH_TEXT not in done.stderr


THROUGH_TEXT = "The draft model has a vocabulary of its own, so it drafts through text."


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The small pair's draft model in another vocabulary."""
    folder = tmp_path_factory.mktemp("other")
    source = checkpoint_of(Path(SMALL_PAIR.draft or ""), folder / "source")
    return respelt(source, folder / "draft", merges=1500)


def test_a_draft_of_another_vocabulary_drafts_through_text(other: Path) -> None:
    asked = ("-p", PROMPT, "--temp", "0")
    done = run("chat", "--draft", other, *asked, "--k", "3", "--show-drafts", "--stats")
    assert done.returncode == 0, done.stderr
    assert THROUGH_TEXT in done.stderr.splitlines()
    assert re.search(r"cross-vocabulary \d+% \(\d+ of \d+\)", done.stderr), done.stderr
    said = events("--draft", other, *asked, "--k", "3", "--drafter", "cross-vocabulary")
    assert "".join(e.get("text", "") for e in said) == "".join(
        e.get("text", "") for e in events("--draft", "none", "--k", "0", *asked)
    )
    assert {name for e in said for name in e.get("drafters", ())} == {"cross-vocabulary"}
    assert 0 < said[-1]["stats"]["accepted"] < said[-1]["stats"]["drafted"]
    assert THROUGH_TEXT not in run("chat", *asked, "--max-tokens", "2").stderr
    wrong = refused(run("chat", "--draft", other, *asked, "--drafter", "model"))
    assert "no drafter 'model', only lookup, cross-vocabulary" in wrong


def test_check_passes_with_a_draft_of_another_vocabulary(other: Path, tmp_path: Path) -> None:
    options = ("--drafter", "cross-vocabulary", "--k", "3", "--max-tokens", "40", "--prompts", prompts_in(tmp_path))
    done = run("check", "--draft", other, *options)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 of 2 prompts" in done.stdout
    assert "nothing was drafted" not in done.stdout


def test_found_beside_the_model_a_draft_of_another_vocabulary_is_left_out_with_a_hint(
    other: Path, tmp_path: Path
) -> None:
    (tmp_path / "m.gguf").symlink_to(SMALL_PAIR.target)
    (tmp_path / "m.draft.gguf").symlink_to(other)
    done = run("chat", tmp_path / "m.gguf", "-p", PROMPT, "--temp", "0", "--max-tokens", "8")
    assert done.returncode == 0
    assert f"{tmp_path / 'm.draft.gguf'}, found beside the model, is left out: " in done.stderr
    assert "with --draft to let it draft through text, or take --draft none" in done.stderr
    assert THROUGH_TEXT not in done.stderr
