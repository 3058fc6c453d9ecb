"""Peers of the benchmark: against stand-ins, llama-cpp-python for real, and others where the environment has them."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psutil
import pytest

import edgespec
from edgespec.backends import Device
from edgespec.bench.contender import AnswerRequest, Chunk, Contender, ContenderFailed, Done
from edgespec.bench.peers import PEERS, Absent, Setup, close_all, peer
from edgespec.bench.peers.child import Child, PeerEngine
from edgespec.bench.peers.llama_server import LlamaServer
from edgespec.engine import Text
from edgespec.errors import ContextOverflow, OptionError
from edgespec.runtime.speculation import Speculation
from edgespec.sampling import Sampling

from . import llamaserver, openvinogenai

unix = pytest.mark.skipif(sys.platform == "win32", reason="scripts are programs on a Unix")
ASK = AnswerRequest([1, 2, 3, 4], Sampling(), 50)
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


def said(answer: Iterator[Chunk | Done]) -> tuple[list[int | None], str, float | None]:
    """Tokens, None for each that was not told; text; and the seconds of the prompt."""
    *parts, done = list(answer)
    assert isinstance(done, Done)
    tokens: list[int | None] = []
    for part in parts:
        assert isinstance(part, Chunk)
        tokens += part.tokens if part.tokens is not None else [None] * part.count
        assert part.tokens is None or len(part.tokens) == part.count
    return tokens, "".join(part.text for part in parts if isinstance(part, Chunk)), done.prompt_seconds


def gone(pid: int) -> bool:
    """Whether a process ends soon."""
    with contextlib.suppress(psutil.NoSuchProcess):
        try:
            psutil.Process(pid).wait(20)
        except psutil.TimeoutExpired:
            return False
    return True


# llama-server


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
server = peer("llama-server", Setup(Path({str(setup.target)!r}), server=Path({str(setup.server)!r}), patience=30))
print(*[server._process.pid, server._process._running.pid], flush=True)
os.kill(os.getpid(), signal.{signal})
"""
    done = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode != 0
    pids = [int(word) for word in done.stdout.split()]
    assert len(pids) == 2
    assert all(map(gone, pids))


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


# What cannot take part


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("llama-server", "llama-server is not on the PATH"),
        ("llama-cpp-python", "runs GGUF files"),
        ("transformers", "that of the target is not known"),
        ("transformers:assisted", "that of the target is not known"),
        ("genai", "onnxruntime_genai is not installed; install it, or let EDGESPEC_GENAI_PYTHON name"),
        ("openvino-genai", "install it, or let EDGESPEC_OPENVINO_GENAI_PYTHON name"),
    ],
)
def test_absent_peers_say_what_they_want(
    name: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in ("EDGESPEC_LLAMA_SERVER", "EDGESPEC_GENAI_PYTHON", "EDGESPEC_OPENVINO_GENAI_PYTHON"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setenv("EDGESPEC_TRANSFORMERS_PYTHON", sys.executable)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Absent, match=reason):
        peer(name, Setup(tmp_path))


@unix
def test_a_draft_must_be_there(serving: Callable[..., Setup], tmp_path: Path) -> None:
    server = serving().server
    with pytest.raises(Absent, match="wants a draft model"):
        peer("llama-server:draft-3", Setup(tmp_path / "model.gguf", server=server))
    with pytest.raises(Absent, match=r"runs GGUF files, and .*folder is none"):
        peer("llama-server:draft-3", Setup(tmp_path / "model.gguf", tmp_path / "folder", server=server))


def test_folders_of_other_formats_are_checked(tmp_path: Path) -> None:
    python = Path(sys.executable)
    with pytest.raises(Absent, match=r"has no config\.json"):
        peer("transformers", Setup(tmp_path, source=tmp_path, python=python))
    with pytest.raises(Absent, match=r"has no genai_config\.json"):
        peer("genai", Setup(tmp_path, genai=tmp_path, python=python))
    with pytest.raises(Absent, match=r"has no openvino_model\.xml; give a folder .* with --openvino-genai$"):
        peer("openvino-genai", Setup(tmp_path, python=python))
    target = intermediate(tmp_path / "target")
    with pytest.raises(Absent, match=r"needs a draft model; give a folder .* with --openvino-genai-draft$"):
        peer("openvino-genai:draft-3", Setup(tmp_path, openvino_genai=target, python=python))
    (target / "openvino_tokenizer.xml").unlink()
    with pytest.raises(Absent, match=r"target has no openvino_tokenizer\.xml; give a folder"):
        peer("openvino-genai", Setup(target, python=python))


def test_unknown_names_list_the_known() -> None:
    with pytest.raises(OptionError, match="no peer 'vllm'; there are llama-server, llama-server:draft-3"):
        peer("vllm", Setup(Path("x")))


# Engines in processes of their own


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


@unix
def test_a_start_is_ended_from_another_thread(serving: Callable[..., Setup], monkeypatch: pytest.MonkeyPatch) -> None:
    def look(server: LlamaServer) -> bool:
        threading.Thread(target=close_all).start()
        assert server._process.ended(within=20)
        return False

    monkeypatch.setattr(LlamaServer, "_healthy", look)
    with pytest.raises(ContenderFailed, match="llama-server: it was ended; start another"):
        peer("llama-server", serving("never ready"))


def test_a_child_refuses_what_its_engine_does_not_know(engine: Callable[..., Child]) -> None:
    child = engine()
    with pytest.raises(ContenderFailed, match="toy knows no min_p like ours"):
        list(child.answer(AnswerRequest([1], Sampling(min_p=0.1), 3)))
    with pytest.raises(ContextOverflow, match="the prompt has 4096 tokens, the context 4096"):
        list(child.answer(AnswerRequest([1] * 4096, Sampling(), 3)))
    with pytest.raises(ContenderFailed, match="cannot be made to say a given text"):
        list(child.answer(AnswerRequest([1], Sampling(), 3, replay=[5])))
    assert len(list(child.answer(AnswerRequest([1], Sampling(), 3)))) == 3


# OpenVINO GenAI, with a stand-in for its package


def intermediate(folder: Path) -> Path:
    """A folder that looks like OpenVINO's intermediate representation."""
    folder.mkdir()
    for name in ("model", "tokenizer", "detokenizer"):
        (folder / f"openvino_{name}.xml").touch()
    return folder


@pytest.fixture
def openvino(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Setup:
    """A setup for the stand-in. The ends of a turn are those of the folder."""
    packages = tmp_path / "packages"
    packages.mkdir()
    shutil.copy(openvinogenai.__file__, packages / "openvino_genai.py")
    (packages / "openvino.py").write_text("class Tensor:\n    def __init__(self, data):\n        self.data = data\n")
    monkeypatch.setenv("PYTHONPATH", str(packages))
    target, draft = intermediate(tmp_path / "target"), intermediate(tmp_path / "draft")
    (target / "generation_config.json").write_text('{"eos_token_id": [2, 14], "do_sample": true}', encoding="utf-8")
    named: dict[str, Any] = {"openvino_genai": target, "openvino_genai_draft": draft, "python": Path(sys.executable)}
    return Setup(tmp_path / "model.gguf", threads=3, context=16, patience=60.0, **named)


def written(setup: Setup, name: str) -> dict[str, Any]:
    """What the stand-in wrote."""
    assert setup.openvino_genai is not None
    found: dict[str, Any] = json.loads((setup.openvino_genai / f"{name}.json").read_text("utf-8"))
    return found


@pytest.mark.parametrize(
    ("name", "opened", "options", "counts"),
    [
        ("openvino-genai", set(), {}, [1, 1, 1, 1]),
        ("openvino-genai:draft-3", {"draft_model"}, {"num_assistant_tokens": 3}, [1, 3]),
        ("openvino-genai:draft-5", {"draft_model"}, {"num_assistant_tokens": 5}, [1, 3]),
        ("openvino-genai:draft-8", {"draft_model"}, {"num_assistant_tokens": 8}, [1, 3]),
        ("openvino-genai:draft-confidence", {"draft_model"}, {"assistant_confidence_threshold": 0.4}, [1, 1, 1, 1]),
        ("openvino-genai:lookup", {"prompt_lookup"}, {"num_assistant_tokens": 5, "max_ngram_size": 3}, [1, 3]),
    ],
)
def test_openvino_genai_answers_in_rounds(
    name: str, opened: set[str], options: dict[str, Any], counts: list[int], openvino: Setup
) -> None:
    """Without the end of the turn, with the text that was held back, and with nothing of the folder's settings."""
    with closing(peer(name, openvino)) as contender:
        assert contender.title == f"{PEERS[name]} (2026-stand-in)"
        *chunks, done = contender.answer(AnswerRequest([5, 6, 7], Sampling(), 9))
        assert [chunk.count for chunk in chunks if isinstance(chunk, Chunk)] == [*counts, 0]
        assert said(iter([*chunks, done]))[:2] == ([10, 11, 12, 13], " 10 11 12 13")
    properties = written(openvino, "opened")
    assert {"draft_model", "prompt_lookup"} & set(properties) == opened
    assert (properties["INFERENCE_NUM_THREADS"], properties["device"], properties["reuses"]) == (3, "CPU", True)
    assert properties["ATTENTION_BACKEND"] == "PA", "others do not speculate"
    if "draft_model" in properties:
        draft = {"folder": str(openvino.openvino_genai_draft), "device": "CPU", "INFERENCE_NUM_THREADS": 3}
        assert properties["draft_model"] == draft
    ends = {"eos_token_id": 2, "stop_token_ids": [2, 14]}
    assert written(openvino, "asked") == {
        "prompt": [[5, 6, 7]],
        "max_new_tokens": 9,
        "do_sample": False,
        **ends,
        **options,
    }


def test_openvino_genai_is_asked_for_the_same_sampling(openvino: Setup) -> None:
    """At most as many tokens as fit; and only without the cache that it cannot sample with."""
    warm = Sampling(0.8, 40, 0.9, 0.05, seed=(1 << 32) + 7)
    with closing(peer("openvino-genai:draft-3", openvino)) as contender:
        first = said(contender.answer(AnswerRequest([5] * 14, Sampling(), 9)))
        assert (first[0], written(openvino, "opened")["reuses"]) == ([10, 11], True)
        for _ in range(2):
            assert said(contender.answer(AnswerRequest([5] * 14, warm, 9)))[0] == [10, 11]
        with pytest.raises(ContenderFailed, match="knows no repetition_penalty like ours"):
            list(contender.answer(AnswerRequest([5], Sampling(repetition_penalty=1.1), 9)))
    opened, asked = written(openvino, "opened"), written(openvino, "asked")
    assert (opened["reuses"], opened["batched"] > 1 << 32) == (False, True)
    assert asked["max_new_tokens"] == 2
    chosen = {"do_sample": True, "temperature": 0.8, "top_k": 40, "top_p": 0.9, "min_p": 0.05, "rng_seed": 7}
    assert {name: asked[name] for name in chosen} == chosen
    with closing(peer("openvino-genai", openvino)) as contender:
        assert said(contender.answer(AnswerRequest([5], warm, 2)))[0] == [10, 11]
    assert written(openvino, "opened")["reuses"], "without a draft model it works"


def test_openvino_genai_does_not_count_what_is_cached(openvino: Setup) -> None:
    """A prompt that was answered needs one token; a folder without settings has the tokenizer's end of a turn."""
    assert openvino.openvino_genai is not None
    (openvino.openvino_genai / "generation_config.json").unlink()
    with closing(peer("openvino-genai", openvino)) as contender:
        tokens, _, seconds = said(contender.answer(AnswerRequest([5, 6, 7], Sampling(), 9)))
        assert tokens == [*openvinogenai.ANSWER]
        assert (seconds or 0) > 0
        assert said(contender.answer(AnswerRequest([5, 6, 7], Sampling(), 9)))[2] == 0
        further = AnswerRequest([5, 6, 7, *openvinogenai.ANSWER, 8], Sampling(), 9)
        assert said(contender.answer(further))[2] == 0
        assert (said(contender.answer(AnswerRequest([5, 6, 8], Sampling(), 9)))[2] or 0) >= 0


# For real

MOST = (24, 3)  # tokens; the first answer ends before
PROMPTS = ["I need a table for two in Oakland tonight.", "Is there a bus to Sacramento, and to San Diego?"]


def plain(target: Path, prompts: list[list[int]]) -> list[list[int]]:
    """What the target says by itself, without the end of the turn."""
    answers = []
    with edgespec.load(target, "none", device=Device(threads=2), speculation=Speculation(k=0, drafters=())) as runtime:
        for prompt, most in zip(prompts, MOST, strict=True):
            events = runtime.complete(prompt, Sampling(), max_tokens=most)
            tokens = [token for event in events if isinstance(event, Text) for token in event.tokens]
            ends = runtime.vocabulary.is_eog
            answers.append([token for token in tokens if not ends(token)])
    return answers


def compare(contender: Contender, prompts: list[list[int]], expected: list[list[int]]) -> None:
    with closing(contender):
        for prompt, tokens, most in zip(prompts, expected, MOST, strict=True):
            heard, _, seconds = said(contender.answer(AnswerRequest(prompt, Sampling(), most)))
            assert heard == tokens
            assert (seconds or 0) >= 0
        assert (contender.memory() or 0) > 10_000_000


@pytest.fixture(scope="module")
def asked(demo: dict[str, Path]) -> tuple[list[list[int]], list[list[int]]]:
    """Prompts to the demo's target, and what it says plainly."""
    with edgespec.load(demo["target"], "none", speculation=Speculation(k=0, drafters=())) as runtime:
        prompts = [runtime.prompt([{"role": "user", "content": text}]) for text in PROMPTS]
    return prompts, plain(demo["target"], prompts)


@pytest.mark.parametrize("name", [name for name in PEERS if name.startswith("llama-cpp-python")])
def test_llama_cpp_python_says_what_we_say(
    name: str, demo: dict[str, Path], asked: tuple[list[list[int]], list[list[int]]]
) -> None:
    compare(peer(name, Setup(demo["target"], threads=2, context=512, patience=120.0)), *asked)


@pytest.mark.parametrize("name", [name for name in PEERS if name.startswith("llama-server")])
def test_llama_server_says_what_we_say(
    name: str, demo: dict[str, Path], asked: tuple[list[list[int]], list[list[int]]]
) -> None:
    server = os.environ.get("EDGESPEC_LLAMA_SERVER") or shutil.which("llama-server")
    if not server:
        pytest.skip("no llama-server")
    setup = Setup(demo["target"], demo["draft"], threads=2, context=512, server=Path(server), patience=120.0)
    compare(peer(name, setup), *asked)


@pytest.mark.parametrize("name", [name for name in PEERS if name.startswith("transformers")])
def test_transformers_says_what_we_say(name: str, checkpoint: Path, onnx_folders: Callable[[str], Path]) -> None:
    python = os.environ.get("EDGESPEC_TRANSFORMERS_PYTHON")
    if not python:
        pytest.skip("no Python with transformers is named")
    prompts = [[5, 6, 7, 8, 5, 6, 7, 8, 5, 6], [300, 301, 302]]
    expected = plain(onnx_folders("fp32"), prompts)
    setup = Setup(checkpoint, None, checkpoint, checkpoint, threads=2, patience=120.0)
    compare(peer(name, setup), prompts, expected)


def test_genai_says_the_same_with_and_without_speculation() -> None:
    python, folder = os.environ.get("EDGESPEC_GENAI_PYTHON"), os.environ.get("EDGESPEC_GENAI_MODEL")
    if not (python and folder):
        pytest.skip("no Python with onnxruntime-genai and a folder of its own are named")
    setup = Setup(Path(folder), genai=Path(folder), genai_draft=Path(folder), context=512, patience=120.0)
    prompts = [[5, 6, 7, 8, 5, 6, 7, 8, 5, 6], [300, 301, 302]]
    with closing(peer("genai", setup)) as contender:
        asks = [AnswerRequest(prompt, Sampling(), most) for prompt, most in zip(prompts, MOST, strict=True)]
        answers = [said(contender.answer(ask)) for ask in asks]
    expected = [[token for token in tokens if token is not None] for tokens, _, _ in answers]
    assert any(expected)
    for name in ("genai:draft", "genai:ngram"):
        compare(peer(name, setup), prompts, expected)


@pytest.fixture(scope="module")
def intermediates() -> Setup:
    """The demo's pair as folders of OpenVINO IR, which the environment names, joined like those of a path."""
    python, folders = os.environ.get("EDGESPEC_OPENVINO_GENAI_PYTHON"), os.environ.get("EDGESPEC_OPENVINO_GENAI_MODELS")
    if not (python and folders):
        pytest.skip("no Python with openvino-genai and folders of the demo's pair are named")
    target, draft = map(Path, folders.split(os.pathsep))
    return Setup(target, draft, threads=2, context=512, patience=120.0)


@pytest.mark.parametrize("name", [name for name in PEERS if name.startswith("openvino-genai")])
def test_openvino_genai_says_what_we_say(
    name: str, intermediates: Setup, asked: tuple[list[list[int]], list[list[int]]]
) -> None:
    compare(peer(name, intermediates), *asked)


def test_openvino_genai_samples_with_a_draft_model(intermediates: Setup) -> None:
    """Which fails with the cache of earlier prompts, in about one answer of 30."""
    with closing(peer("openvino-genai:draft-3", intermediates)) as contender:
        for seed in range(60):
            ask = AnswerRequest([*range(5, 20 + seed)], Sampling(temperature=0.8, seed=seed), 40)
            assert said(contender.answer(ask))[2] is not None
