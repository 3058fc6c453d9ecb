"""A server on a thread: it listens while the model is loaded, and ends within seconds."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn
from starlette.types import ASGIApp

from ..errors import OptionError
from .patient import patient
from .service import Service
from .settings import Settings

_CANCELLED_AFTER = 3.0  # seconds that requests have to end
_ENDED_AFTER = 4  # seconds after which connections are closed
_IDLE = 75  # seconds after which a connection without requests is closed; clients give theirs up before


class Running:
    """An application that is served.

    Args:
        listening: the socket, from `listen`.
    """

    def __init__(self, app: ASGIApp, service: Service, listening: socket.socket) -> None:
        config = uvicorn.Config(
            app,
            http=patient(service.settings.patience),
            ws="none",
            lifespan="off",
            log_config=None,
            log_level="error",
            access_log=False,
            server_header=False,
            timeout_keep_alive=_IDLE,
            timeout_graceful_shutdown=_ENDED_AFTER,
        )
        self._server = _Server(config, service)
        self._thread = threading.Thread(
            target=self._server.run, kwargs={"sockets": [listening]}, name="edgespec-server", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """Refuse further requests, and end those under way within five seconds. A second call ends them at once."""
        self._server.force_exit = self._server.should_exit
        self._server.should_exit = True

    def ended(self, seconds: float) -> bool:
        """Whether it has ended, after at most so many seconds."""
        self._thread.join(seconds)
        return not self._thread.is_alive()


class _Server(uvicorn.Server):
    """uvicorn's, without signal handlers, and with an end for answers under way."""

    def __init__(self, config: uvicorn.Config, service: Service) -> None:
        super().__init__(config)
        self._service = service

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._service.end()
        cancelling = asyncio.ensure_future(self._cancel())
        await super().shutdown(sockets)
        cancelling.cancel()

    async def _cancel(self) -> None:
        end = time.monotonic() + _CANCELLED_AFTER
        while self._service.busy and time.monotonic() < end and not self.force_exit:
            await asyncio.sleep(0.05)
        self._service.cancel()


def listen(settings: Settings) -> socket.socket:
    """A socket that listens. Raises OptionError where the address is not this machine's, or in use."""
    try:
        found = socket.getaddrinfo(settings.host, settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = found[0]
        listening = socket.socket(family, kind, protocol)
        try:
            if hasattr(socket, "SO_REUSEPORT"):  # on Windows SO_REUSEADDR lets two servers have one port
                listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind(address)
            listening.listen(1024)
        except BaseException:
            listening.close()
            raise
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise OptionError(
            f"cannot listen on {settings.host}:{settings.port}: {reason}; give another --port or --host"
        ) from error
    listening.setblocking(False)
    return listening


def address(listening: socket.socket) -> str:
    """The URL of a listening socket."""
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
