"""Answers that wait for their turn, and answers that are cancelled singly."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial

import pytest

from edgespec import Answer, BusyError, ClosedError, Event, Finished, Runtime, Text
from edgespec.runtime.turns import Turns

from .toy_runtime import USER, AtWork, Reader, opened, read


def until(happened: Callable[[], bool]) -> None:
    """Wait for it; a test that waits in vain fails."""
    end = time.monotonic() + 20
    while not happened():
        assert time.monotonic() < end, "it does not happen"
        time.sleep(0.001)


def queued(runtime: Runtime) -> int:
    return len(runtime._queue)


class Waiting:
    """Answers that wait behind the one under way, in the order in which they were asked for."""

    def __init__(self, runtime: Runtime, count: int) -> None:
        self.order: list[int] = []
        self.answers: list[Answer] = []
        self.readers: list[Reader] = []
        for i in range(count):
            before = queued(runtime)
            answer = runtime.complete(f"{i}", max_tokens=3, wait=True)
            self.answers.append(answer)
            self.readers.append(Reader(partial(self._noted, i, answer)))
            until(lambda before=before: queued(runtime) == before + 1)  # type: ignore[misc]

    def _noted(self, number: int, answer: Answer) -> Iterator[Event]:
        for event in answer:
            if isinstance(event, Finished):
                self.order.append(number)
            yield event


def test_answers_come_in_the_order_in_which_they_were_asked_for(at_work: AtWork) -> None:
    runtime, _, gate, reader = at_work
    waiting = Waiting(runtime, 4)
    with pytest.raises(BusyError, match=r"wait for it \(wait=True\)"):
        next(runtime.complete("b"))
    assert waiting.order == []
    gate.go_on.set()
    assert reader.finished() == "context"
    assert [each.finished() for each in waiting.readers] == ["length"] * 4
    assert waiting.order == [0, 1, 2, 3]
    assert queued(runtime) == 0


def test_cancel_ends_those_that_wait_at_once(at_work: AtWork) -> None:
    """Before the answer under way has ended its pass."""
    runtime, _, gate, reader = at_work
    waiting = Waiting(runtime, 2)
    runtime.cancel()
    for each in waiting.readers:
        assert each.finished() == "cancelled"
        assert len(each.events) == 1
    assert reader.is_alive()
    gate.go_on.set()
    assert reader.finished() == "cancelled"
    assert read(runtime.complete("b", max_tokens=3))[1].reason == "length"


def test_one_that_waits_is_cancelled_alone(at_work: AtWork) -> None:
    runtime, _, gate, reader = at_work
    waiting = Waiting(runtime, 3)
    waiting.answers[1].cancel()
    assert waiting.readers[1].finished() == "cancelled"
    gate.go_on.set()
    assert reader.finished() == "context"
    assert [each.finished() for each in waiting.readers] == ["length", "cancelled", "length"]
    assert waiting.order == [1, 0, 2]


def test_the_one_under_way_is_cancelled_alone() -> None:
    runtime, _ = opened()
    with runtime:
        answer = runtime.complete("abc", max_tokens=50)
        next(answer)
        other = runtime.complete("abc", max_tokens=2)
        other.cancel()
        assert isinstance(next(answer), Text), "it is none of its own"
        answer.cancel()
        assert read(answer)[1].reason == "cancelled"
        assert read(other)[1].reason == "cancelled", "it was before it began"
        answer.cancel()
        assert read(runtime.chat([USER], max_tokens=2, wait=True))[1].reason == "length", "it has ended already"


def test_close_refuses_those_that_wait(at_work: AtWork) -> None:
    runtime, model, gate, _ = at_work
    waiting = Waiting(runtime, 2)
    closer = threading.Thread(target=runtime.close, daemon=True)
    closer.start()
    for each in waiting.readers:
        each.join(20)
        assert isinstance(each.error, ClosedError)
        assert each.events == []
    assert model.log == []
    gate.go_on.set()
    closer.join(20)
    assert not closer.is_alive()
    assert model.log == ["session closed", "model closed"]
    with pytest.raises(ClosedError):
        runtime.complete("b", wait=True)


def test_whatever_is_cancelled_all_others_have_their_turn() -> None:
    """Many threads, with answers that are cancelled, forgotten and read to their end."""
    runtime, _ = opened(k=0, drafters=())
    ended: list[str] = []

    def ask(number: int) -> None:
        for turn in range(12):
            answer = runtime.complete("abc", max_tokens=3, wait=True)
            if (number + turn) % 3 == 0:
                threading.Thread(target=answer.cancel, daemon=True).start()
            if (number + turn) % 5 == 0:
                next(answer)
                continue  # forgotten
            ended.append(read(answer)[1].reason)

    threads = [threading.Thread(target=ask, args=(i,), daemon=True) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive(), "it hangs"
    assert set(ended) <= {"length", "cancelled"}
    assert ended.count("length") > 20
    assert queued(runtime) == 0
    runtime.close()


def test_who_gives_up_or_fails_leaves_the_queue() -> None:
    turns = Turns()
    first, second = object(), object()
    assert turns.take(first)
    assert not turns.take_at_once(second)
    assert not turns.take(second, lambda: True)

    def fails() -> bool:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        turns.take(second, fails)
    acted: list[str] = []
    turns.if_holder(second, lambda: acted.append("second"))
    turns.if_holder(first, lambda: acted.append("first"))
    assert acted == ["first"]
    turns.leave(first)
    assert turns.take_at_once(second)
    turns.leave(second)
    with ExitStack() as stack:
        stack.enter_context(turns.turn())
        assert not turns.take_at_once(first)
    assert turns.take_at_once(first)
