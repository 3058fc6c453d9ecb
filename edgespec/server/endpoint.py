"""A call of the API: reads the request, watches the connection, and writes the answer or the error."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from .body import fields_of
from .errors import ClientGone, refusal
from .fields import Fields
from .metrics import Metrics
from .outgoing import Outgoing
from .settings import Settings

#: Answers a request with these fields.
Handle = Callable[[Fields, Outgoing], Coroutine[Any, Any, None]]

_GONE = 499  # counted, never sent
_log = logging.getLogger("edgespec.server")


class Endpoint:
    """An ASGI application for one route.

    Args:
        route: its path, for the metrics.
        handle: answers a request; it is cancelled where the client goes.
        settings: of the server: its patience and its heartbeat.
        ready: raises Refused where the server cannot answer yet, or no longer.
    """

    def __init__(
        self, route: str, handle: Handle, metrics: Metrics, settings: Settings, ready: Callable[[], object]
    ) -> None:
        self._route = route
        self._handle = handle
        self._metrics = metrics
        self._settings = settings
        self._ready = ready

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        patience = self._settings.patience
        out = Outgoing(send, patience, self._settings.heartbeat)
        status = _GONE
        try:
            fields = await fields_of(Request(scope, receive), patience)
            self._ready()
            await unless_gone(receive, self._handle(fields, out))
            status = out.status
        except ClientGone:
            return
        except Exception as error:  # noqa: BLE001 - everything that a request does is answered
            refused = refusal(error)
            status = refused.status
            if refused.status >= 500 and refused is not error:
                _log.error("%s failed", self._route, exc_info=error)
            await _told(out.fail(refused))
        finally:
            self._metrics.answered(self._route, status)


async def _told(failing: Awaitable[None]) -> None:
    try:
        await failing
    except ClientGone:
        return


async def unless_gone(receive: Receive, answering: Coroutine[Any, Any, None]) -> None:
    """Wait for `answering`; cancel it if the client goes. Raises ClientGone."""
    work = asyncio.ensure_future(answering)
    watch = asyncio.ensure_future(_gone(receive))
    try:
        await asyncio.wait([work, watch], return_when=asyncio.FIRST_COMPLETED)
    finally:
        watch.cancel()
        if not work.done():
            work.cancel()
        await asyncio.wait([work])
    if work.cancelled():
        raise ClientGone
    work.result()


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        continue
