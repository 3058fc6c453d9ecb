"""Answers for `async for`: order, cancelling in the middle of a pass, exceptions."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import aclosing
from typing import Any, TypeVar

import pytest

from edgespec import BusyError, ContextOverflow, Event, Finished, OptionError, Runtime, Started, Text, aio
from edgespec.types import Floats

from .toy_runtime import TALK, USER, Gate, opened, read

T = TypeVar("T")


def run(work: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(asyncio.wait_for(work, 30))


async def gathered(events: AsyncIterator[Event]) -> list[Event]:
    return [event async for event in events]


def gated(at: int) -> tuple[Runtime, Gate]:
    gate = Gate(TALK, at)

    def rule(context: Sequence[int]) -> Floats:
        return gate(context)

    return opened(rule, drafters=(), k=0)[0], gate


def reasons(events: Sequence[Event]) -> list[str]:
    return [event.reason for event in events if isinstance(event, Finished)]


def test_the_same_events_as_without() -> None:
    runtime, _ = opened(k=2)
    with runtime:
        expected, finished = read(runtime.chat([USER], max_tokens=12))
        events = run(gathered(aio.chat(runtime, [USER], max_tokens=12)))
        assert isinstance(events[0], Started)
        assert [token for event in events if isinstance(event, Text) for token in event.tokens] == expected
        assert reasons(events) == [finished.reason]
        assert reasons(run(gathered(aio.complete(runtime, "abc", max_tokens=3)))) == ["length"]
        assert reasons(run(gathered(aio.stream(runtime.complete("abc", max_tokens=3))))) == ["length"]


def test_the_loop_goes_on_while_a_pass_is_computed() -> None:
    runtime, gate = gated(20)

    async def both() -> list[Event]:
        task = asyncio.create_task(gathered(aio.complete(runtime, "a" * 10, max_tokens=15)))
        while not gate.reached.is_set():
            await asyncio.sleep(0.001)
        gate.go_on.set()
        return await task

    with runtime:
        assert reasons(run(both())) == ["length"]


def test_a_task_that_is_cancelled_cancels_its_answer_in_the_middle_of_a_pass() -> None:
    """When the task has ended so has the answer, and the next one begins; however often it is cancelled."""
    runtime, gate = gated(20)

    async def cancelled() -> None:
        task = asyncio.create_task(gathered(aio.complete(runtime, "a" * 10, max_tokens=100)))
        while not gate.reached.is_set():
            await asyncio.sleep(0.001)
        for _ in range(3):
            task.cancel()
            await asyncio.sleep(0.01)
        assert not task.done(), "the pass goes on"
        gate.go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert runtime._streams.under_way is None
        assert reasons(await gathered(aio.complete(runtime, "b", max_tokens=3))) == ["length"]

    with runtime:
        run(cancelled())
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("edgespec-answer")]


def test_leaving_ends_the_answer() -> None:
    runtime, _ = opened()

    async def left() -> None:
        async with aclosing(aio.complete(runtime, "abc", max_tokens=50)) as events:
            async for event in events:
                if isinstance(event, Text):
                    break
        assert runtime._streams.under_way is None, "at once"
        async for _ in aio.complete(runtime, "abc", max_tokens=50):
            break
        while runtime._streams.under_way is not None:
            await asyncio.sleep(0.001)

    with runtime:
        run(left())


def test_exceptions_come_out_where_the_event_is_awaited() -> None:
    runtime, _ = opened(context=64)

    async def fails() -> None:
        with pytest.raises(OptionError, match="no messages"):
            await gathered(aio.chat(runtime, []))
        with pytest.raises(ContextOverflow):
            await gathered(aio.complete(runtime, "a" * 100))
        async with aclosing(aio.complete(runtime, "abc", max_tokens=9)) as first:
            await anext_(first)
            with pytest.raises(BusyError):
                await gathered(aio.complete(runtime, "b"))

    with runtime:
        run(fails())


async def anext_(events: AsyncIterator[Event]) -> Event:
    return await events.__anext__()


def test_one_that_fails_in_the_middle_leaves_the_runtime_usable() -> None:
    calls: list[int] = []

    def rule(context: Sequence[int]) -> Floats:
        calls.append(len(context))
        if len(context) == 8 and calls.count(8) == 1:
            raise ZeroDivisionError
        return TALK(context)

    runtime, _ = opened(rule, drafters=(), k=0, context=40)

    async def fails() -> None:
        calls.clear()
        with pytest.raises(ZeroDivisionError):
            await gathered(aio.complete(runtime, "abc", max_tokens=20))
        assert reasons(await gathered(aio.complete(runtime, "b", max_tokens=3))) == ["length"]

    calls.extend([8, 8])  # none fails while prices are measured
    with runtime:
        run(fails())


def test_answers_wait_for_each_other_and_leave_singly() -> None:
    runtime, gate = gated(20)

    async def queue() -> None:
        first = asyncio.create_task(gathered(aio.complete(runtime, "a" * 10, max_tokens=15)))
        while not gate.reached.is_set():
            await asyncio.sleep(0.001)
        others = [asyncio.create_task(gathered(aio.complete(runtime, "b", max_tokens=3, wait=True))) for _ in range(3)]
        while len(runtime._queue) < 4:
            await asyncio.sleep(0.001)
        others[1].cancel()
        with pytest.raises(asyncio.CancelledError):
            await others[1]
        gate.go_on.set()
        assert reasons(await first) == ["length"], "another one's cancelling is none of its own"
        assert [reasons(await each) for each in (others[0], others[2])] == [["length"]] * 2

    with runtime:
        run(queue())
