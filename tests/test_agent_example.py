"""The agent of examples/ against a server whose model calls a tool, and then answers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from .served import serving
from .test_server_tools import saying, with_template

EXAMPLE = Path(__file__).parents[1] / "examples" / "agent.py"
pytestmark = pytest.mark.skipif(not EXAMPLE.is_file(), reason="these tests lie beside an install")
LINE = "a line of the file"


def test_it_reads_a_file_and_answers(tmp_path: Path) -> None:
    pytest.importorskip("llguidance")
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "notes.txt").write_text(LINE)
    (tmp_path / "outside.txt").write_text("no")
    files = ("notes.txt", "../outside.txt")
    calls = [f'<tool_call>\n{{"name": "read_file", "arguments": {{"name":"{name}"}}}}\n</tool_call>' for name in files]
    first, then = saying("\n".join(calls)), saying("It has one line.")
    prompts: list[bytes] = []

    def rule(context: Any) -> Any:
        text = bytes(token for token in context if token < 256)
        if not prompts or not text.startswith(prompts[-1]):
            prompts.append(text)
        prompts[-1] = text
        return (then if LINE.encode() in text else first)(context)

    with serving(rule, context=2048) as served:
        with_template(served)
        done = subprocess.run(
            [sys.executable, str(EXAMPLE), "How many lines?", served.url],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
            cwd=folder,
            env={**os.environ, "NO_PROXY": "*"},
        )
    assert done.stdout == "It has one line.\n", done.stderr
    assert done.stderr.count("[read_file ") == 2
    assert b"it is not in this folder" in prompts[-1]
