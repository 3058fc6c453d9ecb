"""Models whose layers workers compute: the same logits, trees and answers, and workers that are lost."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from edgespec import Device, Finished, Interrupt, Sampling, Speculation, Text, load
from edgespec.backends import Model, Session, open_model
from edgespec.backends.llama_remote import RemoteModel
from edgespec.errors import EngineError, Interrupted
from edgespec.runtime.runtime import Runtime
from edgespec.testing import SESSION_LAWS, EngineCase

from .requantize import requantize
from .toy_runtime import read
from .workers import free_endpoint, require_rpc, worker

PROMPT = "I need a table for two in Oakland tonight."


@pytest.fixture(scope="module", autouse=True)
def rpc() -> None:
    require_rpc()


@pytest.fixture(scope="module")
def sharp(small_pair: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The small pair's draft with 32-bit weights, which do not enlarge the rounding of attention."""
    return requantize(small_pair["draft"], tmp_path_factory.mktemp("sharp") / "draft.gguf", "ALL_F32")


@pytest.fixture(scope="module")
def remote(sharp: Path) -> Iterator[Model]:
    endpoint = free_endpoint()
    with worker(endpoint):
        model = open_model(sharp, Device(threads=1, rpc=(endpoint,)), Interrupt())
        yield model
        model.close()


@pytest.fixture(scope="module")
def local(sharp: Path) -> Iterator[Model]:
    model = open_model(sharp, Device(threads=1), Interrupt())
    yield model
    model.close()


@pytest.mark.parametrize("law", SESSION_LAWS)
def test_the_law(remote: Model, law: str) -> None:
    SESSION_LAWS[law](EngineCase(remote, 0.06))


def test_logits_are_those_of_this_machine(local: Model, remote: Model) -> None:
    """Of a prefill, a chain, a tree of which one path stays, and the pass after."""
    here, there = local.session(256), remote.session(256)
    assert (here.widest, here.leaves, here.vocab) == (there.widest, there.leaves, there.vocab)
    for step in ("prefill", "chain", "tree", "after"):
        rows = []
        for session in (here, there):
            if step == "prefill":
                session.prefill([5, 6, 7, 8])
            elif step == "tree":
                rows.append(session.decode([9, 10, 11, 12], (-1, 0, 0, -1)).copy())
                session.rollback(6, (0, 2))
            else:
                rows.append(session.decode([np.int64(13), 14]).copy())
        assert here.tokens == there.tokens
        assert not rows or np.array_equal(*rows), step
    assert list(there.tokens) == [5, 6, 7, 8, 13, 14, 9, 11, 13, 14]
    for session in (here, there):
        session.close()


def test_sessions_of_one_model_do_not_mix(remote: Model) -> None:
    one, two = remote.session(64), remote.session(64)
    one.prefill([5, 6])
    two.prefill([7])
    one.close()
    three = remote.session(64)
    assert (list(two.tokens), list(three.tokens)) == ([7], [])
    assert not np.array_equal(two.decode([8]), three.decode([8]))
    assert list(two.tokens) == [7, 8]
    two.close()
    three.close()


def opened(target: Path, draft: Path | str, rpc: tuple[str, ...], drafters: tuple[str, ...] | None = None) -> Runtime:
    return load(target, draft, device=Device(256, 1, rpc=rpc), speculation=Speculation(drafters, 3), fetch=False)


def test_an_answer_is_that_of_this_machine_with_wrong_drafts(small_pair: dict[str, Path]) -> None:
    """The draft stays here, and is often wrong for this temperature."""
    sampling, endpoint = Sampling(temperature=1.2, seed=3), free_endpoint()
    with opened(small_pair["target"], "none", ()) as runtime:
        said, _ = read(runtime.complete(PROMPT, sampling, max_tokens=40))
    with worker(endpoint), opened(small_pair["target"], small_pair["draft"], (endpoint,), ("model",)) as runtime:
        again, finished = read(runtime.complete(PROMPT, sampling, max_tokens=40))
    assert again == said
    assert 0 < finished.stats.accepted < finished.stats.drafted


def test_a_lost_worker_is_one_line_and_the_next_answer_is_right(small_pair: dict[str, Path]) -> None:
    endpoint = free_endpoint()
    with worker(endpoint) as running:
        runtime = opened(small_pair["target"], small_pair["draft"], (endpoint,))
        said, _ = read(runtime.complete(PROMPT, max_tokens=30))
        answer = runtime.complete(PROMPT, max_tokens=30)
        assert any(isinstance(event, Text) for event in (next(answer), next(answer)))
        running.kill()
        running.wait()
        with pytest.raises(EngineError, match=f"worker was lost: no worker can be reached at {endpoint}") as lost:
            list(answer)
        assert "\n" not in str(lost.value)
    with pytest.raises(EngineError, match="edgespec worker --listen"):
        list(runtime.complete(PROMPT, max_tokens=30))
    with worker(endpoint):
        assert read(runtime.complete(PROMPT, max_tokens=30))[0] == said
    runtime.close()


def test_the_process_of_the_model_may_be_killed_and_ends_with_the_model(sharp: Path) -> None:
    endpoint = free_endpoint()
    with worker(endpoint):
        model = open_model(sharp, Device(threads=1, rpc=(endpoint,)), Interrupt())
        assert isinstance(model, RemoteModel)
        session = model.session(64)
        session.prefill([5, 6])
        process = model.process(Interrupt())
        process.kill()
        with pytest.raises(EngineError, match="ask again"):
            session.decode([7])
        assert list(session.tokens) == []
        session.prefill([5, 6])
        assert list(session.tokens) == [5, 6]
        last = model.process(Interrupt())
        assert last is not process
        model.close()
        session.close()
        assert not last.is_alive


def test_an_interrupt_stops_a_prefill_and_a_later_call_goes_on(sharp: Path) -> None:
    endpoint, interrupt = free_endpoint(), Interrupt()
    with worker(endpoint):
        model = open_model(sharp, Device(threads=1, rpc=(endpoint,)), interrupt)
        session = model.session(4096)
        session.prefill([5])
        timer = threading.Timer(0.05, interrupt.set)
        timer.start()
        with pytest.raises(Interrupted):
            _prefill_for_long(session)
        assert list(session.tokens)[:1] == [5]
        interrupt.clear()
        session.rollback(1)
        session.prefill([7])
        assert list(session.tokens) == [5, 7]
        model.close()


def _prefill_for_long(session: Session) -> None:
    for _ in range(500):
        session.prefill([6] * 2000)
        session.rollback(1)


def test_a_silent_worker_does_not_keep_a_cancelled_call(sharp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that is stopped answers nothing, as one whose machine was switched off."""
    import signal  # noqa: PLC0415

    monkeypatch.setattr("edgespec.backends.llama_remote_process._GRACE", 0.2)
    endpoint, interrupt = free_endpoint(), Interrupt()
    with worker(endpoint) as running:
        model = open_model(sharp, Device(threads=1, rpc=(endpoint,)), interrupt)
        session = model.session(64)
        running.send_signal(signal.SIGSTOP)
        threading.Timer(0.1, interrupt.set).start()
        began = time.monotonic()
        with pytest.raises(Interrupted):
            session.decode([5])
        assert time.monotonic() - began < 60
        assert list(session.tokens) == []
        model.close()


def test_a_stopped_answer_is_cancelled(small_pair: dict[str, Path]) -> None:
    endpoint = free_endpoint()
    with worker(endpoint), opened(small_pair["target"], "none", (endpoint,)) as runtime:
        answer = runtime.complete(PROMPT)
        next(answer)
        runtime.cancel()
        events = list(answer)
        assert isinstance(events[-1], Finished)
        assert events[-1].reason == "cancelled"
        assert read(runtime.complete(PROMPT, max_tokens=3))[1].reason == "length"
