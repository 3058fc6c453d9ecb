"""A response on its way to the client: JSON at once, or a stream of server-sent events or of lines."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from typing import Any

from starlette.types import Send

from .channel import Channel, T
from .errors import ClientGone, Refused
from .settings import HEARTBEAT, PATIENCE

SSE, LINES = "text/event-stream", "application/x-ndjson"


class Outgoing:
    """Writes one response.

    Args:
        patience: seconds that the client may take to read what it was sent; then it counts as gone.
        heartbeat: seconds without an event after which a stream gets a comment.
    """

    def __init__(self, send: Send, patience: float = PATIENCE, heartbeat: float = HEARTBEAT) -> None:
        self._send = send
        self._patience = patience
        self._heartbeat = heartbeat
        self._kind = ""
        self.status = 0  #: that was sent; 0 before

    async def json(self, value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> None:
        """Send `value` as the whole response."""
        await self.whole(encoded(value), "application/json", status, headers)

    async def whole(self, body: bytes, kind: str, status: int = 200, headers: Mapping[str, str] | None = None) -> None:
        """Send `body` as the whole response."""
        await self._start(kind, status, {**(headers or {}), "content-length": str(len(body))})
        await self._write(body, more=False)

    async def begin(self, kind: str) -> None:
        """Begin a stream."""
        self._kind = kind
        await self._start(kind, 200, {"cache-control": "no-cache", "x-accel-buffering": "no"})

    async def item(self, value: Any, name: str = "") -> None:
        """Send an event of the stream, of this `name` where the API has names."""
        data = value.encode() if isinstance(value, str) else encoded(value)
        if self._kind == SSE:
            named = f"event: {name}\n".encode() if name else b""
            await self._write(b"%sdata: %s\n\n" % (named, data))
        else:
            await self._write(data + b"\n")

    async def part(self, body: bytes) -> None:
        """Send a part of a response that began elsewhere, as it is."""
        await self._write(body)

    async def end(self) -> None:
        """End the stream."""
        await self._write(b"", more=False)

    async def fail(self, error: Refused) -> None:
        """Tell the client of an error: as the response, or as the last event of the stream."""
        if not self.status:
            await self.json(error.as_json(), error.status, error.headers)
        else:
            await self.item(error.as_json())
            await self.end()

    async def kept_alive(self, channel: Channel[T]) -> AsyncIterator[T]:
        """The events of `channel`; while there are none, a comment is sent now and then."""
        while True:
            following = asyncio.ensure_future(channel.get())
            try:
                while not (await asyncio.wait([following], timeout=self._heartbeat))[0]:
                    if self._kind == SSE:
                        await self._write(b": \n\n")
            finally:
                if not following.done():
                    following.cancel()
            if (event := following.result()) is None:
                return
            yield event

    async def _start(self, kind: str, status: int, headers: Mapping[str, str]) -> None:
        self.status = status
        given = {"content-type": kind, "x-content-type-options": "nosniff", **headers}
        pairs = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in given.items()]
        await self._send({"type": "http.response.start", "status": status, "headers": pairs})

    async def _write(self, body: bytes, *, more: bool = True) -> None:
        try:
            message = {"type": "http.response.body", "body": body, "more_body": more}
            await asyncio.wait_for(self._send(message), self._patience)
        except (asyncio.TimeoutError, OSError):
            raise ClientGone from None


def encoded(value: Any) -> bytes:
    """`value` as JSON in UTF-8."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")
