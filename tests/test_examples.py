"""The scripts of examples/ run on the demo pair and do what they say."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"
pytestmark = pytest.mark.skipif(not EXAMPLES.is_dir(), reason="these tests lie beside an install")


def run(name: str, *arguments: str, status: int = 0) -> str:
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name), *arguments], capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_streaming() -> None:
    text, figures = run("streaming.py").strip().rsplit("\n", 1)
    assert len(text) > 20
    assert re.fullmatch(r"\[\d+ tokens in \d+ passes; ended by: (end|length)\]", figures)


def test_cancelling() -> None:
    text, reason = run("cancelling.py").strip().rsplit("\n", 1)
    assert len(text) >= 20
    assert reason == "[ended by: cancelled]"


def test_comparing() -> None:
    lines = [re.fullmatch(r" *(.+?): (\d+) passes: (.*)", line) for line in run("comparing.py").splitlines()]
    found = {line[1]: (int(line[2]), line[3]) for line in lines if line}
    assert list(found) == ["plain", "adaptive", "K = 3"]
    assert len({text for _, text in found.values()}) == 1
    assert found["K = 3"][0] < found["plain"][0]


def test_asyncio() -> None:
    first, second = run("asyncio_chat.py").strip().split("\n")
    assert first.startswith("1: ")
    assert len(first) > 20
    assert second.startswith("2: ")
    assert second.endswith(" [stopped]")


@pytest.mark.parametrize("name", ["streaming.py", "cancelling.py", "comparing.py", "asyncio_chat.py", "window.py"])
def test_an_error_is_one_line(name: str, tmp_path: Path) -> None:
    output = run(name, str(tmp_path / "missing.gguf"), status=1)
    assert re.fullmatch(r"Error: no model at .*\n", output)


def test_the_list_of_examples_is_whole() -> None:
    listed = set(re.findall(r"\]\((\w+\.py)\)", (EXAMPLES / "README.md").read_text("utf-8")))
    assert listed == {path.name for path in EXAMPLES.glob("*.py")}
