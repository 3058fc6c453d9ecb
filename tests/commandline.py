"""The command `edgespec` as a subprocess."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

EDGESPEC = str(Path(sys.executable).parent / "edgespec")
PROMPT = "I need a table for two in Oakland tonight."
unix = pytest.mark.skipif(sys.platform == "win32", reason="pseudo-terminals need a Unix")


def run(
    *arguments: str | Path, stdin: str | None = None, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [EDGESPEC, *map(str, arguments)],
        input=stdin,
        stdin=subprocess.DEVNULL if stdin is None else None,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env={**os.environ, **(env or {})},
    )


def events(*arguments: str | Path) -> list[dict[str, Any]]:
    done = run("chat", *arguments, "--json")
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def refused(done: subprocess.CompletedProcess[str]) -> str:
    """The one line that a failed run leaves on stderr."""
    assert done.returncode not in (0, -6, -11), done
    assert "Traceback" not in done.stderr + done.stdout
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith("Error: ")
    return lines[0]


def prompts_in(folder: Path) -> Path:
    """A file of two prompts."""
    file = folder / "prompts.jsonl"
    file.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in (PROMPT, "I need a train to 你好 😀")))
    return file


def last_error(done: subprocess.CompletedProcess[str]) -> str:
    """The last line that a failed run leaves on stderr, an error in one line."""
    assert done.returncode in (1, 2), done
    assert "Traceback" not in done.stderr + done.stdout
    assert done.stderr.splitlines()[-1].startswith("Error: ")
    return done.stderr.splitlines()[-1]
