"""Answers for `async for`: each is read on a thread of its own, so that the event loop is not blocked.

    async with contextlib.aclosing(aio.chat(runtime, messages)) as events:
        async for event in events:
            ...

`chat` and `complete` take a runtime and the arguments of the methods of that name. Errors are raised with the first
event. An event is computed when it is requested. If the task is cancelled or the iterator is closed, the answer is
cancelled in the middle of its pass, and has ended before the task has: the next answer can begin. After a `break`
without `aclosing` the answer ends when the event loop finalizes the iterator.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import ThreadPoolExecutor
from functools import wraps
from typing import Concatenate, ParamSpec, TypeVar

from .engine import Event
from .runtime.answer import Answer
from .runtime.runtime import Runtime

P = ParamSpec("P")
T = TypeVar("T")

Events = AsyncGenerator[Event, None]


def _streamed(method: Callable[Concatenate[Runtime, P], Answer]) -> Callable[Concatenate[Runtime, P], Events]:
    """A function of a runtime and the arguments of `method`, whose events it returns."""

    @wraps(method, assigned=("__name__", "__doc__"))
    def events(runtime: Runtime, /, *args: P.args, **kwargs: P.kwargs) -> Events:
        return _events(lambda: method(runtime, *args, **kwargs))

    return events


chat = _streamed(Runtime.chat)
complete = _streamed(Runtime.complete)


def stream(answer: Answer) -> Events:
    """The events of an answer that exists already, which `Runtime.chat` or `Runtime.complete` returned."""
    return _events(lambda: answer)


async def _events(start: Callable[[], Answer]) -> Events:
    """The events of the answer that `start` returns. Both are computed on a thread of their own."""
    with ThreadPoolExecutor(1, "edgespec-answer") as thread:
        answer = await _ended(thread, start, lambda: None)
        try:
            while (event := await _ended(thread, lambda: next(answer, None), answer.cancel)) is not None:
                yield event
        finally:
            answer.close()


async def _ended(thread: ThreadPoolExecutor, work: Callable[[], T], cancel: Callable[[], None]) -> T:
    """The result of `work` on the thread. If the task is cancelled, call `cancel` and wait for the end of the work."""
    future = asyncio.get_running_loop().run_in_executor(thread, work)
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        cancel()
        while not future.done():
            try:
                await asyncio.wait([future])
            except asyncio.CancelledError:
                continue  # it is cancelled already
        if not future.cancelled():
            future.exception()  # retrieved, so that asyncio does not log it
        raise
