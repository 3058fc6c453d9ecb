"""A thread pool that keeps the order of a stream."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any


class OrderedThreadPool:
    """Maps a function over a stream: results come in order, and only a few elements are in memory at a time."""

    def __init__(self) -> None:
        self._threads = min(8, os.cpu_count() or 1)
        self._executor = ThreadPoolExecutor(self._threads, "edgespec-quantize")

    def __enter__(self) -> OrderedThreadPool:
        return self

    def __exit__(self, *_: object) -> None:
        self._executor.shutdown(wait=True, cancel_futures=True)

    def map(self, work: Callable[[Any], Any], stream: Iterator[Any]) -> Iterator[Any]:
        """`work` of each element of `stream`, in order."""
        waiting: deque[Future[Any]] = deque()
        for element in stream:
            waiting.append(self._executor.submit(work, element))
            if len(waiting) > self._threads:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
