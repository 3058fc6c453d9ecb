"""The command `edgespec` under a pseudo-terminal."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from .commandline import EDGESPEC

pexpect = pytest.importorskip("pexpect", reason="pseudo-terminals need a Unix")


def spawn(tmp_path: Path, *arguments: str, **env: str) -> Any:
    """edgespec under a pseudo-terminal of 200 columns, with a home of its own."""
    return pexpect.spawn(
        EDGESPEC,
        list(arguments),
        env={
            **os.environ,
            "HOME": str(tmp_path),
            "XDG_STATE_HOME": str(tmp_path),
            "TERM": "xterm-256color",
            "PROMPT_TOOLKIT_NO_CPR": "1",
            **env,
        },
        dimensions=(50, 200),
        encoding="utf-8",
        timeout=30,
    )


def type_in(child: Any, line: str) -> None:
    """Type a line as a terminal sends it: Enter is a carriage return."""
    child.send(line + "\r")
    child.expect_exact("\x1b[?2004l")  # the line editor let go of the terminal
