"""What is said between this process and the one that computes on workers: frames of JSON, perhaps with bytes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, BinaryIO

Said = dict[str, Any]


def send(pipe: BinaryIO, said: Mapping[str, Any], payload: memoryview | bytes = b"") -> None:
    """Write a frame: a line of JSON with the size of `payload`, and `payload`.

    Raises:
        OSError, ValueError: the reader is gone, or the pipe was closed.
    """
    size = memoryview(payload).nbytes
    pipe.write(json.dumps({**said, "bytes": size}).encode() + b"\n")
    if size:
        pipe.write(payload)
    pipe.flush()


def receive(pipe: BinaryIO) -> tuple[Said, bytearray] | None:
    """The next frame; None where the writer is gone.

    Raises:
        OSError, ValueError: the pipe was closed, or what was written is no frame.
    """
    line = pipe.readline()
    if not line.endswith(b"\n"):
        return None
    said: Said = json.loads(line)
    payload = bytearray(said.pop("bytes"))
    view, at = memoryview(payload), 0
    while at < len(payload):
        # Of a raw or a buffered pipe alike: some bytes, and 0 at its end.
        count = pipe.readinto(view[at:])  # type: ignore[attr-defined]
        if not count:
            return None
        at += count
    return said, payload
