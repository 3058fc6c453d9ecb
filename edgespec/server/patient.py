"""HTTP connections whose requests must begin in time."""

from __future__ import annotations

import asyncio
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol


def patient(seconds: float) -> type[H11Protocol]:
    """uvicorn's protocol, which closes a connection that takes longer than `seconds` to send the head of a request.

    uvicorn itself closes connections that are silent after an answer, not those that are silent at first, nor those on
    which a head comes byte by byte.
    """

    class Patient(H11Protocol):
        def __init__(self, *given: Any, **named: Any) -> None:
            super().__init__(*given, **named)
            self._late: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self._watch()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self._watch()

        def connection_lost(self, exc: Exception | None) -> None:
            self._forget()
            super().connection_lost(exc)

        def _watch(self) -> None:
            """Begin to wait for a head, or end with it."""
            if self.conn.their_state is not h11.IDLE:
                self._forget()
            elif self._late is None:
                self._late = self.loop.call_later(seconds, self.transport.close)

        def _forget(self) -> None:
            if self._late is not None:
                self._late.cancel()
                self._late = None

    return Patient
