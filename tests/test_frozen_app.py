"""The window of examples/, frozen by PyInstaller, answers. `pytest -m slow`: the build takes a minute."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from edgespec import Text, load, models

pytestmark = pytest.mark.slow

EXAMPLES = Path(__file__).parents[1] / "examples"
#: The Python of an environment with PyInstaller, llguidance and edgespec, which is not an editable install there.
PYTHON = os.environ.get("EDGESPEC_PYINSTALLER_PYTHON", sys.executable)
QUESTION = "I need a table for two in Oakland tonight."
#: Asks in the window, as a person does, and prints what the window shows when the answer is complete.
APP = f"""
import tkinter as tk

import edgespec
from edgespec import models
from window import Window

with edgespec.load(models.demo().target) as runtime:
    root = tk.Tk()
    window = Window(root, runtime)
    window.question.insert(0, {QUESTION!r})
    window.button.invoke()

    def wait():
        if window.answer is not None:
            root.after(50, wait)
            return
        shown.append(window.log.get("1.0", "end"))
        window.close()

    shown = []
    wait()
    root.mainloop()
print(window.messages[-1]["content"])
print(*shown)
print("grammar:", edgespec.Grammar.regex("[a-z]+").kind)
"""


def _can_freeze() -> bool:
    code = "import PyInstaller, edgespec, llguidance, sys; sys.exit(not edgespec.__file__.startswith(sys.prefix))"
    return subprocess.run([PYTHON, "-I", "-c", code], capture_output=True, check=False).returncode == 0


def test_the_frozen_window_answers(tmp_path: Path) -> None:
    screen = [] if os.environ.get("DISPLAY") else [shutil.which("xvfb-run") or "", "-a"]
    if "" in screen:
        pytest.skip("there is neither a display nor xvfb-run (apt install xvfb)")
    if not _can_freeze():
        pytest.skip("EDGESPEC_PYINSTALLER_PYTHON is not set: a Python with PyInstaller, llguidance and the wheel")
    (tmp_path / "app.py").write_text(APP)
    build = [PYTHON, "-m", "PyInstaller", "--noconfirm", "--paths", str(EXAMPLES), "app.py"]
    subprocess.run(build, cwd=tmp_path, check=True, capture_output=True)
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    run = [*screen, str(tmp_path / "dist" / "app" / "app")]
    done = subprocess.run(run, cwd=tmp_path, env=clean, capture_output=True, text=True, timeout=120, check=False)
    with load(models.demo().target) as runtime:
        events = runtime.chat([{"role": "user", "content": QUESTION}], max_tokens=200)
        expected = "".join(event.text for event in events if isinstance(event, Text))
    assert done.stdout.startswith(f"{expected}\n{QUESTION}\n"), done.stdout + done.stderr
    assert "tokens in" in done.stdout
    assert "grammar: lark" in done.stdout, "llguidance is part of the app"
    assert done.returncode == 0
