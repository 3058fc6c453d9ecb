"""Peers of the benchmark in processes of their own: what they answer, and how they end."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from edgespec.bench.contender import AnswerRequest, Chunk, ContenderFailed, Done
from edgespec.bench.peers import Absent, Setup, close_all
from edgespec.bench.peers.child import Child, PeerEngine
from edgespec.errors import ContextOverflow
from edgespec.sampling import Sampling

from .peers import gone

#: An engine that does as the first token of its prompt says.
ENGINE = """
import os, sys, threading

def load(given):
    if given["fault"]:
        raise OSError("no such model\\nin two lines")
    print("hello from an engine")
    os.write(1, b"and from its C code\\n")
    return answer, f"1.2 with {given['threads']}"

def answer(ask, say):
    say([10, 11], "one")
    fault = {1: None, 2: "raises", 3: "dies", 4: "hangs"}[ask["prompt"][0]]
    if fault == "raises":
        raise ValueError("bad logits")
    if fault == "dies":
        sys.stderr.write("Segmentation fault, say\\n")
        sys.stderr.flush()
        os._exit(139)
    if fault == "hangs":
        threading.Event().wait()
    say([12] * ask["max_tokens"], str(ask["sampling"]["seed"]))
    return 0.25
"""


def test_a_child_does_not_outlive_us(tmp_path: Path) -> None:
    """Not even in the middle of an answer."""
    (tmp_path / "stand_in.py").write_text(ENGINE, encoding="utf-8")
    code = f"""
import os
from pathlib import Path
from edgespec.bench.contender import AnswerRequest
from edgespec.bench.peers.child import Child, PeerEngine
from edgespec.bench.peers.setup import Setup
from edgespec.sampling import Sampling
import sys
engine = PeerEngine("toy", "A toy", {str(tmp_path / "stand_in")!r}, sys.executable, {{"fault": ""}}, ())
child = Child(engine, Setup(Path("x")))
answer = child.answer(AnswerRequest([4], Sampling(), 3))
next(answer)
print(child._process.pid, flush=True)
os._exit(9)
"""
    done = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 9
    assert gone(int(done.stdout))


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Callable[..., Child]]:
    """Starts the stand-in of an engine; ends all of them."""
    (tmp_path / "stand_in.py").write_text(ENGINE, encoding="utf-8")
    started: list[Child] = []

    def start(fault: str = "", patience: float = 30.0, python: str = sys.executable) -> Child:
        described = PeerEngine("toy", "A toy", str(tmp_path / "stand_in"), python, {"fault": fault}, ("min_p",))
        started.append(Child(described, Setup(tmp_path, threads=3, patience=patience)))
        return started[-1]

    yield start
    for child in started:
        child.close()


def test_a_child_answers_whatever_its_engine_prints(engine: Callable[..., Child]) -> None:
    child = engine()
    assert child.title == "A toy (1.2 with 3)"
    for seed in (7, 8):
        heard = list(child.answer(AnswerRequest([1], Sampling(seed=seed), 3)))
        assert heard == [Chunk("one", (10, 11), 2), Chunk(str(seed), (12, 12, 12), 3), Done(0.25)]
    child.close()
    assert (child.memory() or 0) > 1_000_000
    with pytest.raises(ContenderFailed, match="toy: it was ended; start another"):
        list(child.answer(AnswerRequest([1], Sampling(), 3)))


@pytest.mark.parametrize(
    ("prompt", "patience", "complaint"),
    [
        (2, 30, "toy: ValueError: bad logits"),
        (3, 30, r"toy: it ended with status 139: .*; Segmentation fault, say"),
        (4, 0.5, r"toy said nothing for 0\.5 seconds"),
    ],
)
def test_a_child_that_breaks_down_says_why(
    prompt: int, patience: float, complaint: str, engine: Callable[..., Child]
) -> None:
    child = engine()
    child._patience = patience
    answer = child.answer(AnswerRequest([prompt], Sampling(), 3))
    assert next(answer) == Chunk("one", (10, 11), 2)
    with pytest.raises(ContenderFailed, match=complaint):
        list(answer)
    assert psutil.pid_exists(child._process.pid) == (prompt == 2), "an error is no breakdown"
    if prompt == 2:
        child._patience = 30
        assert len(list(child.answer(AnswerRequest([1], Sampling(), 3)))) == 3


def test_a_child_that_does_not_load_says_why(engine: Callable[..., Child], tmp_path: Path) -> None:
    with pytest.raises(ContenderFailed, match=r"^toy: OSError: no such model in two lines$"):
        engine("cannot load")
    with pytest.raises(Absent, match=r"toy: .*nowhere cannot be run"):
        engine(python="/nowhere")
    if sys.platform != "win32":
        talker = tmp_path / "talker"
        talker.write_text("#!/bin/sh\necho Welcome\ncat > /dev/null\n")
        talker.chmod(0o755)
        with pytest.raises(ContenderFailed, match=r"toy said .*Welcome.*, which is no JSON"):
            engine(python=str(talker))
    assert not psutil.Process().children(recursive=True)


def test_half_an_answer_ends_the_child(engine: Callable[..., Child]) -> None:
    """Or the rest of it would be heard as the next one."""
    child = engine()
    answer = child.answer(AnswerRequest([4], Sampling(), 3))
    next(answer)
    answer.close()  # type: ignore[attr-defined]
    assert gone(child._process.pid)


def test_an_answer_is_ended_from_another_thread(engine: Callable[..., Child]) -> None:
    """As Ctrl-C has it, and a window that is closed."""
    child = engine()
    answer = child.answer(AnswerRequest([4], Sampling(), 3))
    next(answer)
    threading.Thread(target=close_all).start()
    with pytest.raises(ContenderFailed, match="toy: it was ended; start another"):
        next(answer)
    assert gone(child._process.pid)


def test_a_child_refuses_what_its_engine_does_not_know(engine: Callable[..., Child]) -> None:
    child = engine()
    with pytest.raises(ContenderFailed, match="toy knows no min_p like ours"):
        list(child.answer(AnswerRequest([1], Sampling(min_p=0.1), 3)))
    with pytest.raises(ContextOverflow, match="the prompt has 4096 tokens, the context 4096"):
        list(child.answer(AnswerRequest([1] * 4096, Sampling(), 3)))
    with pytest.raises(ContenderFailed, match="cannot be made to say a given text"):
        list(child.answer(AnswerRequest([1], Sampling(), 3, replay=[5])))
    assert len(list(child.answer(AnswerRequest([1], Sampling(), 3)))) == 3
