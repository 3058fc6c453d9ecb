"""Several runtimes over one loaded pair."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from edgespec import (
    ClosedError,
    Device,
    Event,
    Finished,
    OptionError,
    Runtime,
    Speculation,
    Text,
    load,
)
from edgespec.backends.toy import Bytes, blend, ngram_rule

from .test_freed import native as native  # noqa: PLC0414 - a fixture
from .toy_runtime import TALK, Gate, Reader, opened

QUESTIONS = ("I need a table for two in Oakland tonight.", "Is there a train to Norwich on Friday?")


def said(events: Iterator[Event]) -> list[int]:
    return [token for event in events if isinstance(event, Text) for token in event.tokens]


def by_turns(*answers: Iterator[Event]) -> list[list[int]]:
    """What each says, an event of each in turn."""
    found: list[list[int]] = [[] for _ in answers]
    running = dict(enumerate(answers))
    while running:
        for i, events in list(running.items()):
            event = next(events, None)
            if event is None:
                del running[i]
            elif isinstance(event, Text):
                found[i] += event.tokens
    return found


def alone_and_by_turns(first: Runtime, speculation: Speculation) -> None:
    alone = [said(first.complete(question, max_tokens=24)) for question in QUESTIONS]
    assert alone[0] != alone[1]
    with first.another(speculation) as second:
        assert second.session is not first.session
        assert second.prices is first.prices
        both = [runtime.complete(text, max_tokens=24) for runtime, text in zip((first, second), QUESTIONS, strict=True)]
        assert by_turns(*both) == alone
        first.close()
        assert said(second.complete(QUESTIONS[0], max_tokens=24)) == alone[0], "closing one leaves the other working"


def test_two_say_by_turns_what_each_says_alone(small_pair: dict[str, Path], native: Counter[str]) -> None:
    """On llama.cpp, by passes whose bits do not depend on what is drafted; and the weights go with the last."""
    drafting = Speculation(k=3)
    first = load(small_pair["target"], small_pair["draft"], device=Device(256, 1, 0, exact=4), speculation=drafting)
    another, _unused = first.another(), native.copy()
    assert native == {"models": 2, "contexts": 4}
    another.close()
    assert native == {"models": 2, "contexts": 2}
    alone_and_by_turns(first, drafting)
    assert native == {"models": 0, "contexts": 0}


def test_two_over_an_onnx_model(onnx_folders: Callable[[str], Path]) -> None:
    device = Device(128, 1, exact=2)
    first = load(onnx_folders("int4"), onnx_folders("int8"), device=device, speculation=Speculation(k=1))
    alone_and_by_turns(first, Speculation(k=1))


def test_models_are_freed_with_the_last_runtime_in_any_order() -> None:
    for order in ((0, 1, 2), (2, 1, 0), (1, 0, 2)):
        first, model = opened(draft=TALK)
        runtimes = [first, first.another(), first.another(Speculation(k=0))]
        for i in order:
            assert "model closed" not in model.log
            runtimes[i].close()
            runtimes[i].close()
        assert model.log == [*["session closed"] * 3, "model closed"]
        for runtime in runtimes:
            with pytest.raises(ClosedError):
                runtime.another()


def test_another_that_is_refused_leaves_the_first_as_it_was() -> None:
    first, model = opened()
    with pytest.raises(OptionError, match="no drafter 'model'"):
        first.another(Speculation(("model",)))
    assert model.log == ["session closed"]
    assert len(said(first.complete("a", max_tokens=3))) == 3
    first.close()
    assert model.log == ["session closed", "session closed", "model closed"]


def test_what_one_learns_the_other_knows() -> None:
    first, _ = opened(draft=blend(TALK, ngram_rule(Bytes.size, seed=6), 0.3))
    with first, first.another() as second:
        assert second.prices is first.prices
        for verifier in ("match", "block"):
            ours, theirs = (each._pair.calibration(Speculation(verifier=verifier)) for each in (first, second))
            assert ours is theirs


def test_cancelling_one_leaves_the_other() -> None:
    """In the middle of its pass: each has an interrupt of its own."""
    first, _ = opened()
    second = first.another()
    with first, second:
        answer = second.complete("abc", max_tokens=20)
        next(answer)
        first.cancel()
        *_, finished = answer
        assert isinstance(finished, Finished)
        assert finished.reason == "length"
        stopped = second.complete("abc", max_tokens=20)
        next(stopped)
        second.cancel()
        *_, finished = stopped
        assert isinstance(finished, Finished)
        assert finished.reason == "cancelled"


def test_a_round_of_one_waits_for_a_round_of_the_other() -> None:
    """On two threads at once: what they share is changed by one of them at a time."""
    gate = Gate(TALK, 30)
    first, _ = opened(gate, k=0, drafters=())
    second = first.another()
    with ExitStack() as stack:
        stack.callback(second.close)
        stack.callback(first.close)
        stack.callback(gate.go_on.set)
        reader = Reader(lambda: first.complete("a" * 30, max_tokens=5))
        assert gate.reached.wait(20)
        other = Reader(lambda: second.complete("b", max_tokens=5))
        other.join(0.1)
        assert other.is_alive()
        assert other.events == []
        second.cancel()
        assert other.finished() == "cancelled", "without waiting"
        other = Reader(lambda: second.complete("b", max_tokens=5))
        gate.go_on.set()
        assert (reader.finished(), other.finished()) == ("length", "length")


def test_many_on_threads_of_their_own() -> None:
    first, model = opened(draft=blend(TALK, ngram_rule(Bytes.size, seed=6), 0.3), context=128)
    expected = said(first.complete("abc", max_tokens=30))
    runtimes = [first, *(first.another() for _ in range(4))]
    readers = [Reader(lambda runtime=runtime: runtime.complete("abc", max_tokens=30)) for runtime in runtimes]  # type: ignore[misc]
    for reader in readers:
        reader.finished()
        assert said(iter(reader.events)) == expected
    closers = [threading.Thread(target=runtime.close, daemon=True) for runtime in runtimes]
    for closer in closers:
        closer.start()
    for closer in closers:
        closer.join(20)
        assert not closer.is_alive(), "it hangs"
    assert model.log == [*["session closed"] * 5, "model closed"]
