"""Answers for `async for`: each is read on a thread of its own, so that the event loop goes on.

    async with contextlib.aclosing(aio.chat(runtime, messages)) as events:
        async for event in events:
            ...

An event is computed when it is asked for. If the task is cancelled, or the iterator is closed, the answer is cancelled
in the middle of its pass and has ended when that is over: the next one may begin. A loop that is left by `break`
without `aclosing` ends its answer a little later, when the event loop gets to it. Exceptions are raised where the
event is awaited.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from .engine import Event
from .runtime.answer import Answer
from .runtime.runtime import Runtime
from .runtime.speculation import Speculation
from .sampling import Sampling
from .text.template import Message

T = TypeVar("T")


def chat(
    runtime: Runtime,
    messages: Sequence[Message],
    sampling: Sampling | None = None,
    *,
    max_tokens: int | None = None,
    stop: Sequence[str] | str = (),
    speculation: Speculation | None = None,
    wait: bool = False,
) -> AsyncGenerator[Event, None]:
    """`Runtime.chat`, with its arguments and errors; these are raised with the first event."""

    def asked() -> Answer:
        return runtime.chat(messages, sampling, max_tokens=max_tokens, stop=stop, speculation=speculation, wait=wait)

    return _events(asked)


def complete(
    runtime: Runtime,
    prompt: str | Sequence[int],
    sampling: Sampling | None = None,
    *,
    max_tokens: int | None = None,
    stop: Sequence[str] | str = (),
    speculation: Speculation | None = None,
    wait: bool = False,
) -> AsyncGenerator[Event, None]:
    """`Runtime.complete`, with its arguments and errors; these are raised with the first event."""

    def asked() -> Answer:
        return runtime.complete(prompt, sampling, max_tokens=max_tokens, stop=stop, speculation=speculation, wait=wait)

    return _events(asked)


def stream(answer: Answer) -> AsyncGenerator[Event, None]:
    """The events of an answer that was asked for already."""
    return _events(lambda: answer)


async def _events(asked: Callable[[], Answer]) -> AsyncGenerator[Event, None]:
    """The events of what `asked` returns; both run on a thread of their own."""
    with ThreadPoolExecutor(1, "edgespec-answer") as thread:
        answer = await _ended(thread, asked, lambda: None)
        try:
            while (event := await _ended(thread, lambda: next(answer, None), answer.cancel)) is not None:
                yield event
        finally:
            answer.close()


async def _ended(thread: ThreadPoolExecutor, work: Callable[[], T], cancel: Callable[[], None]) -> T:
    """What `work` returns on the thread. If this is cancelled it calls `cancel`, and ends when the work has."""
    future = asyncio.get_running_loop().run_in_executor(thread, work)
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        cancel()
        while not future.done():
            try:
                await asyncio.wait([future])
            except asyncio.CancelledError:
                continue  # it is being cancelled already
        if not future.cancelled():
            future.exception()  # nobody is there to be told
        raise
