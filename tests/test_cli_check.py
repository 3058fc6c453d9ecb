"""`edgespec check` as a subprocess."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from .commandline import PROMPT, prompts_in, refused, run


def test_check_exact_is_identical(tmp_path: Path) -> None:
    done = run(
        "check", "--exact", "4", "--k", "3", "--max-tokens", "48", "--temp", "0", "--prompts", prompts_in(tmp_path)
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == "2 of 2 prompts: 2 identical, 0 near ties, 0 different"
    assert "nothing was drafted" not in done.stdout


def test_check_compares_and_says_so(tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.jsonl"
    chat = {"messages": [{"role": "user", "content": PROMPT}]}
    prompts.write_text(json.dumps(chat) + "\n" + json.dumps({"prompt": "Once upon a time"}) + "\n")
    done = run("check", "--prompts", prompts, "--k", "4", "--max-tokens", "32", "--temp", "0.8")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 of 2 prompts" in done.stdout


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("", "holds no prompt"),
        ("not json\n", "line 1 is not JSON"),
        ('{"prompt": "fine"}\n{"text": "x"}\n', "line 2 has neither"),
        ('{"messages": [{"role": "user"}]}\n', "line 1"),
        ('{"messages": []}\n', "line 1 has neither"),
        ("[1]\n", "line 1 has neither"),
        ("[" * 100_000 + "\n", "line 1 is not JSON"),
        (json.dumps({"prompt": "word " * 5000}) + "\n", "line 1 has"),
    ],
)
def test_check_names_the_broken_line(tmp_path: Path, content: str, says: str) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text(content)
    assert says in refused(run("check", "--prompts", file))


def test_check_that_checked_nothing_fails() -> None:
    """Identical output proves nothing where nothing was drafted."""
    done = run("check", "--k", "0", "--max-tokens", "4")
    assert done.returncode == 1
    assert "nothing was drafted" in done.stdout


def test_check_of_a_verifier_that_promises_no_text() -> None:
    assert "preserves the distribution" in refused(run("check", "--verifier", "rejection", "--temp", "0.8"))
