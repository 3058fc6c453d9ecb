"""The window of examples/ on a display of its own: it streams, shows drafts, and stops."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from edgespec import Speculation, assemble
from edgespec.backends.toy import Bytes, Rule, ToyModel, blend, ngram_rule, scripted

from .toy_runtime import TALK, Gate

EXAMPLE = Path(__file__).parents[1] / "examples" / "window.py"
tkinter = pytest.importorskip("tkinter", reason="Python has no Tkinter here")
pytestmark = [
    pytest.mark.skipif(not EXAMPLE.is_file(), reason="these tests lie beside an install"),
    pytest.mark.skipif(shutil.which("Xvfb") is None, reason="there is no Xvfb"),
]


@pytest.fixture(scope="module")
def display() -> Iterator[str]:
    """A display without a screen."""
    read, write = os.pipe()
    with subprocess.Popen(["Xvfb", "-displayfd", str(write), "-screen", "0", "900x600x24"], pass_fds=[write]) as server:
        os.close(write)
        with os.fdopen(read) as told:
            yield f":{told.readline().strip()}"
        server.terminate()


@pytest.fixture
def module() -> Any:
    spec = importlib.util.spec_from_file_location("window_example", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


def until(root: Any, done: Callable[[], bool]) -> None:
    end = time.monotonic() + 20
    while not done():
        assert time.monotonic() < end, "the window does not get there"
        root.update()


def window(module: Any, display: str, rule: Rule) -> Any:
    draft = blend(rule, ngram_rule(Bytes.size, seed=6), 0.4)
    runtime = assemble(ToyModel(rule), ToyModel(draft), speculation=Speculation(k=4))
    return module.Window(tkinter.Tk(screenName=display), runtime)


def tagged(shown: Any, tag: str) -> str:
    ranges = [str(each) for each in shown.log.tag_ranges(tag)]
    return "".join(shown.log.get(*pair) for pair in zip(ranges[::2], ranges[1::2], strict=True))


def test_an_answer_is_streamed_with_its_drafts(module: Any, display: str) -> None:
    shown = window(module, display, scripted(Bytes.size, list(b"the quick brown fox jumps. ")))
    shown.question.insert(0, "Hello")
    shown.send()
    until(shown.root, lambda: shown.answer is None)
    answer = shown.messages[-1]["content"]
    assert len(answer) == 200
    assert "Hello" in tagged(shown, "question")
    assert "200 tokens" in tagged(shown, "figures")
    assert len(tagged(shown, "accepted")) > 60
    text = shown.log.get("1.0", "end")
    assert len(text) - len(tagged(shown, "rejected")) == len("Hello\n") + 200 + len(tagged(shown, "figures")) + 1
    shown.close()
    shown.runtime.close()


def test_the_button_stops_an_answer(module: Any, display: str) -> None:
    gate = Gate(TALK, 60)
    shown = window(module, display, gate)
    shown.question.insert(0, "Hello")
    shown.send()
    until(shown.root, gate.reached.is_set)
    assert shown.button["text"] == "Stop"
    shown.send()
    gate.go_on.set()
    until(shown.root, lambda: shown.answer is None)
    assert "ended by: cancelled" in tagged(shown, "figures")
    assert shown.button["text"] == "Send"
    shown.close()
    shown.runtime.close()
