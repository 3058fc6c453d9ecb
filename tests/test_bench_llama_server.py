"""llama-server as a peer of the benchmark, against a stand-in."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from edgespec.bench.contender import AnswerRequest, Chunk, ContenderFailed, Done
from edgespec.bench.peers import Absent, Setup, close_all, peer
from edgespec.bench.peers.llama_server import LlamaServer
from edgespec.converters import convert_head
from edgespec.sampling import Sampling

from . import eagle3_heads, heads, llamaserver
from .peers import gone, said
from .small_pair import SMALL_PAIR

unix = pytest.mark.skipif(sys.platform == "win32", reason="scripts are programs on a Unix")
ASK = AnswerRequest([1, 2, 3, 4], Sampling(), 50)


@pytest.fixture
def server(tmp_path: Path) -> Path:
    """The stand-in as a program."""
    program = tmp_path / "bin" / "llama-server"
    program.parent.mkdir()
    program.write_text(f"#!{sys.executable} -I\n" + Path(llamaserver.__file__).read_text("utf-8"), encoding="utf-8")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return program


@pytest.fixture
def serving(server: Path, tmp_path: Path) -> Callable[..., Setup]:
    """A setup for the stand-in that fails as it is told."""

    def given(fault: str = "", **others: Any) -> Setup:
        model, draft = tmp_path / "model.gguf", tmp_path / "draft.gguf"
        model.write_text(fault, encoding="utf-8")
        draft.touch()
        usual = {"server": server, "threads": 3, "context": 512, "patience": 30.0}
        return Setup(model, draft, **{**usual, **others})

    return given


@unix
def test_a_server_answers_token_by_token(serving: Callable[..., Setup]) -> None:
    with closing(peer("llama-server", serving())) as contender:
        assert contender.title == "llama.cpp server, plain (b7-stand-in)"
        assert not contender.replays
        first = list(contender.answer(ASK))
        # The end of the turn is none of them, and of the two behind one character the first is not known.
        assert first == [
            Chunk(" a", (5,), 1),
            Chunk("", (6,), 1),
            Chunk(" é", None, 2),
            Chunk(".", (9,), 1),
            Done(0.06),
        ]
        assert list(contender.answer(ASK)) == first
        # Without the end, what has no text is said all the same.
        assert said(contender.answer(AnswerRequest([1], Sampling(), 2))) == ([5, 6], " a", 0.06)
    assert (contender.memory() or 0) > 1_000_000, "as it was when it was closed"
    contender.close()


@unix
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("llama-server", []),
        ("llama-server:draft-16", ["--spec-type", "draft-simple", "--spec-draft-n-max", "16"]),
        ("llama-server:ngram-mod", ["--spec-type", "ngram-mod"]),
    ],
)
def test_a_server_is_started_as_the_others_run(
    name: str, expected: list[str], serving: Callable[..., Setup], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LLAMA_ARG_SPEC_TYPE", "ngram-cache")
    setup = serving(gpu_layers=0)
    with closing(peer(name, setup)) as contender:
        assert isinstance(contender, LlamaServer)
        started = json.loads(setup.target.with_suffix(".started").read_text("utf-8"))
    assert started["id"] == contender._process.pid, "or the memory would be another's"
    options = started["options"]
    given = {"-t": "3", "-tb": "3", "-c": "512", "-np": "1", "-ngl": "0", "-ngld": "0", "--host": "127.0.0.1"}
    assert {flag: options[options.index(flag) + 1] for flag in given} == given
    assert ("-md" in options) == ("draft" in name)
    assert options[options.index("--host") - len(expected) : options.index("--host")] == expected
    assert not [key for key in started["environment"] if key.startswith("LLAMA_")]
    assert started["group"] != os.getpgrp(), "a Ctrl-C at the terminal must not reach it"


@unix
def test_a_server_drafts_with_a_head(serving: Callable[..., Setup], tmp_path: Path) -> None:
    """In the target's file, or in a file of its own; a draft model is none."""
    _, head = heads.qwen35_apart(tmp_path, right=False)
    for draft, given in ((None, False), (head, True), (SMALL_PAIR.draft, False)):
        setup = replace(serving(), heads=(head,) if given else (), draft=None if given else draft)
        with closing(peer("llama-server:mtp-3", setup)):
            options = json.loads(setup.target.with_suffix(".started").read_text("utf-8"))["options"]
        assert ("-md" in options) is given
        first = options.index("--spec-type")
        assert options[first : first + 4] == ["--spec-type", "draft-mtp", "--spec-draft-n-max", "3"]


@unix
def test_a_server_drafts_with_an_eagle3_head(serving: Callable[..., Setup], tmp_path: Path) -> None:
    """It is none for multi-token prediction, nor is one of these an EAGLE-3 head."""
    source = eagle3_heads.write(
        tmp_path / "source",
        eagle3_heads.config(),
        eagle3_heads.tensors(eagle3_heads.config(), {"hidden": 512, "vocabulary": 4096}),
    )
    head = tmp_path / "head.gguf"
    list(convert_head(source, SMALL_PAIR.target, head))
    setup = replace(serving(), heads=(head,))
    with closing(peer("llama-server:eagle3-3", setup)):
        options = json.loads(setup.target.with_suffix(".started").read_text("utf-8"))["options"]
    assert options[options.index("-md") + 1] == str(head)
    assert "draft-eagle3" in options
    with closing(peer("llama-server:mtp-3", setup)):
        options = json.loads(setup.target.with_suffix(".started").read_text("utf-8"))["options"]
    assert "-md" not in options
    for draft in (None, SMALL_PAIR.draft):
        with pytest.raises(Absent, match="wants an EAGLE-3 head"):
            peer("llama-server:eagle3-3", replace(setup, draft=draft, heads=()))


@unix
def test_a_server_is_asked_for_the_same_sampling(serving: Callable[..., Setup]) -> None:
    setup = serving()
    asked = []
    warm = Sampling(0.8, 40, 0.9, 0.05, 1.1, 0.2, 0.3, 32, ((3, 1.5), (4, -float("inf"))), seed=(1 << 32) - 1)
    with closing(peer("llama-server", setup)) as contender:
        for sampling in (Sampling(top_k=40), warm):
            list(contender.answer(AnswerRequest([1, 2], sampling, 9)))
            asked.append(json.loads(setup.target.with_suffix(".asked").read_text("utf-8")))
    always = {"prompt": [1, 2], "n_predict": 9, "stream": True, "cache_prompt": True, "return_tokens": True}
    assert all(always.items() <= each.items() for each in asked)
    assert (asked[0]["samplers"], asked[0]["top_k"], asked[0]["temperature"]) == (["penalties", "top_k"], 1, 0)
    assert asked[1]["samplers"] == ["penalties", "temperature", "top_k", "top_p", "min_p"]
    names = ("temperature", "top_k", "top_p", "min_p", "repeat_penalty", "presence_penalty", "frequency_penalty")
    assert [asked[1][name] for name in names] == [0.8, 40, 0.9, 0.05, 1.1, 0.2, 0.3]
    assert (asked[1]["repeat_last_n"], asked[1]["logit_bias"]) == (32, [[3, 1.5], [4, False]])
    assert asked[1]["seed"] == 0, "the largest would mean any"


@unix
@pytest.mark.parametrize(
    ("fault", "patience", "complaint"),
    [
        ("exits", 30, r"it ended with status 1: 0\.00\.002 E no such model$"),
        ("never ready", 0.3, "is not ready after 0.3 seconds; it said last: .* 503"),
    ],
)
def test_a_server_that_does_not_come_up_says_why(
    fault: str, patience: float, complaint: str, serving: Callable[..., Setup]
) -> None:
    with pytest.raises(ContenderFailed, match=complaint):
        peer("llama-server", serving(fault, patience=patience))
    assert not psutil.Process().children(recursive=True)


@unix
@pytest.mark.parametrize(
    ("fault", "patience", "complaint"),
    [
        ("dies", 30, "it ended with status 3: loading; terminate called:; bad alloc"),
        ("hangs", 0.4, r"said nothing for 0\.4 seconds"),
        ("fails", 30, "it gave up: no room left"),
        ("refuses", 30, "it refused: the prompt is too long"),
    ],
)
def test_a_server_that_breaks_off_says_why(
    fault: str, patience: float, complaint: str, serving: Callable[..., Setup]
) -> None:
    with closing(peer("llama-server", serving(fault))) as contender:
        assert isinstance(contender, LlamaServer)
        contender._patience = patience
        answer = contender.answer(ASK)
        if fault != "refuses":
            assert next(answer) == Chunk(" a", (5,), 1)
        with pytest.raises(ContenderFailed, match=f"^llama-server:? {complaint}"):
            list(answer)


@unix
def test_a_program_that_is_none(serving: Callable[..., Setup], tmp_path: Path) -> None:
    setup = serving(server=tmp_path / "nothing")
    with pytest.raises(ContenderFailed, match="nothing cannot be run: No such file"):
        peer("llama-server", setup)


@unix
@pytest.mark.parametrize("signal", ["SIGKILL", "SIGTERM", "SIGINT"])
def test_a_server_does_not_outlive_us(signal: str, serving: Callable[..., Setup]) -> None:
    setup = serving()
    code = f"""
import os, signal
from pathlib import Path
from edgespec.bench.peers import Setup, peer
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell lets what runs in its background ignore it
server = peer("llama-server", Setup(Path({str(setup.target)!r}), server=Path({str(setup.server)!r}), patience=30))
print(*[server._process.pid, server._process._running.pid], flush=True)
os.kill(os.getpid(), signal.{signal})
"""
    done = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode != 0
    pids = [int(word) for word in done.stdout.split()]
    assert len(pids) == 2
    assert all(map(gone, pids))


@unix
def test_a_draft_must_be_there(serving: Callable[..., Setup], tmp_path: Path) -> None:
    server = serving().server
    with pytest.raises(Absent, match="wants a draft model"):
        peer("llama-server:draft-3", Setup(tmp_path / "model.gguf", server=server))
    with pytest.raises(Absent, match=r"runs GGUF files, and .*folder is none"):
        peer("llama-server:draft-3", Setup(tmp_path / "model.gguf", tmp_path / "folder", server=server))


@unix
def test_a_start_is_ended_from_another_thread(serving: Callable[..., Setup], monkeypatch: pytest.MonkeyPatch) -> None:
    def look(server: LlamaServer) -> bool:
        threading.Thread(target=close_all).start()
        assert server._process.ended(within=20)
        return False

    monkeypatch.setattr(LlamaServer, "_healthy", look)
    with pytest.raises(ContenderFailed, match="llama-server: it was ended; start another"):
        peer("llama-server", serving("never ready"))
