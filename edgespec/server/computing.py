"""A request in a slot: its answers are computed on the slot's thread and read on the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Generator
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass
from typing import NamedTuple

from ..engine import Event, Finished
from .channel import Channel
from .errors import ClientGone, Refused
from .metrics import Metrics
from .settings import PATIENCE
from .slots import Slot, Slots
from .wanted import Wanted


class Item(NamedTuple):
    """An event of one of the answers, by its number. `event` is None when the prompt of the first one is accepted."""

    answer: int
    event: Event | None


@dataclass(frozen=True, slots=True)
class Computing:
    """The slots and the metrics of what they compute."""

    slots: Slots
    metrics: Metrics
    patience: float = PATIENCE  #: seconds that a client may take to read what it was sent

    @asynccontextmanager
    async def answers(self, wanted: Wanted) -> AsyncIterator[Channel[Item]]:
        """A channel with the events of the answers, whose first item says that the prompt is accepted: what the
        request has wrong is raised before. Leaving the block cancels what is not read.

        Raises:
            Refused: the queue is full.
            and as `Runtime.chat`, for the first prompt.

        What fails or is cancelled later is raised by `Channel.get`.
        """
        slot = await self.slots.take(wanted.key)
        channel = Channel[Item](patience=self.patience)
        slot.cancel = slot.runtime.cancel
        loop = asyncio.get_running_loop()
        work = loop.run_in_executor(slot.thread, self._compute, slot, wanted, channel)
        work.add_done_callback(lambda _work: self.slots.give(slot))
        try:
            first = await channel.get()
            if first is None or first.event is not None:
                raise Refused("the answer ended before it began", 503)
            yield channel
        finally:
            channel.close()

    def _compute(self, slot: Slot, wanted: Wanted, channel: Channel[Item]) -> None:
        """On the thread of the slot."""
        try:
            with closing(self._items(slot, wanted, channel)) as items:
                for item in items:
                    channel.put(item)
            channel.end()
        except BaseException as error:  # noqa: BLE001 - raised again on the loop, which logs it
            channel.end(error)

    def _items(self, slot: Slot, wanted: Wanted, channel: Channel[Item]) -> Generator[Item, None, None]:
        channel.attach(slot.runtime.cancel)
        for index in range(wanted.count):
            if channel.closed:
                raise ClientGone
            answer = wanted.answer(slot.runtime, index)
            channel.attach(slot.runtime.cancel)  # again: a cancellation before the answer existed had no effect
            if index == 0:
                yield Item(0, None)
            try:
                for event in answer:
                    self.metrics.heard(event)
                    if isinstance(event, Finished) and event.reason == "cancelled":
                        raise Refused("the answer was cancelled: the server is ending; send the request again", 503)
                    yield Item(index, event)
            finally:
                answer.close()
