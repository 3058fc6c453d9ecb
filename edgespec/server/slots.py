"""Slots, each a runtime with a KV cache of its own over the shared weights, and the queue of requests for them."""

from __future__ import annotations

import asyncio
import math
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from ..runtime.runtime import Runtime
from .errors import Refused


@dataclass(eq=False, slots=True)
class Slot:
    """A runtime and the thread that reads its answers.

    Args:
        key: that of the prompt it computed last, see `Wanted.key`.
        since: when the request in it began, by `time.monotonic`; None where it is free.
    """

    number: int
    runtime: Runtime
    thread: ThreadPoolExecutor = field(init=False)
    key: str = ""
    since: float | None = None
    cancel: Callable[[], None] | None = None

    def __post_init__(self) -> None:
        self.thread = ThreadPoolExecutor(1, f"edgespec-slot-{self.number}")

    def close(self) -> None:
        """Cancel the work under way, wait for its end, and free the cache."""
        self.runtime.close()
        self.thread.shutdown()


class Slots:
    """The slots of a server. All methods are for the event loop.

    Args:
        runtimes: one for each slot.
        waiting: requests that wait at most.
    """

    def __init__(self, runtimes: Sequence[Runtime], waiting: int) -> None:
        self.all = [Slot(number, runtime) for number, runtime in enumerate(runtimes)]
        self._free = list(self.all)  # in the order in which they became free
        self._queue: deque[asyncio.Future[Slot]] = deque()
        self._most = waiting
        self._seconds = 1.0  # that the last request took
        self._ending = False

    @property
    def busy(self) -> int:
        """Slots with a request."""
        return len(self.all) - len(self._free)

    @property
    def queued(self) -> int:
        """Requests that wait."""
        return sum(not place.done() for place in self._queue)

    async def take(self, key: str) -> Slot:
        """The free slot whose last prompt has the longest common prefix with `key`, if more than half of that prompt
        stays, else the one that was not used for the longest time: a few words that all conversations begin with must
        not evict one. Without a free slot it waits for one, in the order of requests.

        Raises:
            Refused: too many requests wait, or the server is ending.
        """
        if self._ending:
            raise _ending()
        if self._free:
            slot = self._chosen(key)
            self._free.remove(slot)
        else:
            slot = await self._waited()
        slot.key, slot.since = key, time.monotonic()
        return slot

    def give(self, slot: Slot) -> None:
        """The request in `slot` has ended; the next one gets it."""
        if slot.since is not None:
            self._seconds = time.monotonic() - slot.since
        slot.since = slot.cancel = None
        while self._queue:
            place = self._queue.popleft()
            if not place.done():
                place.set_result(slot)
                return
        self._free.append(slot)

    def end(self) -> None:
        """Refuse further requests, and those that wait."""
        self._ending = True
        while self._queue:
            place = self._queue.popleft()
            if not place.done():
                place.set_exception(_ending())

    def cancel(self) -> None:
        """Cancel the requests under way."""
        for slot in self.all:
            if slot.cancel is not None:
                slot.cancel()

    def close(self) -> None:
        """Free all slots; what is under way is cancelled."""
        for slot in self.all:
            slot.close()

    def _chosen(self, key: str) -> Slot:
        shared = {slot: _shared(slot.key, key) for slot in self._free}
        kept = [slot for slot, length in shared.items() if 2 * length > len(slot.key)]
        return max(kept, key=lambda slot: shared[slot]) if kept else self._free[0]

    async def _waited(self) -> Slot:
        if self.queued >= self._most:
            after = str(min(60, max(1, math.ceil(self._seconds))))
            raise Refused(
                f"{self.queued} requests wait already, which is the limit (--queue); send it again later",
                429,
                code="queue_full",
                headers={"Retry-After": after},
            )
        place: asyncio.Future[Slot] = asyncio.get_running_loop().create_future()
        self._queue.append(place)
        try:
            return await place
        except asyncio.CancelledError:
            if place.done() and not place.cancelled() and place.exception() is None:
                self.give(place.result())  # it came at the moment when the client went
            elif place in self._queue:
                self._queue.remove(place)
            raise


def _ending() -> Refused:
    return Refused("the server is ending; send the request again to its successor", 503, headers={"Retry-After": "5"})


def _shared(left: str, right: str) -> int:
    """The length of the longest common prefix; by bisection, since texts are long and slices are compared fast."""
    lengths = range(min(len(left), len(right)))
    return bisect_left(lengths, True, key=lambda n: left[: n + 1] != right[: n + 1])
