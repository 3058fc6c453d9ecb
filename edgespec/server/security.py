"""Who may call the server: keys, the header Host (DNS rebinding), and the origin of web pages."""

from __future__ import annotations

import hmac
import socket
from ipaddress import ip_address
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from .errors import Refused
from .outgoing import Outgoing
from .settings import LOOPBACK, Settings

_PUBLIC = ("/health", "/", "/page.css", "/page.js", "/favicon.ico")  # the page asks for the key itself


class Guard:
    """An ASGI application before another one, which refuses what must not reach it.

    A web page whose name resolves to this machine (DNS rebinding) sends its own name as Host: only loopback names, IP
    addresses, the name of this machine and those of the settings are accepted. A page of another origin may send simple
    requests without asking; it is refused by its Origin, unless the settings allow it.
    """

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self._app = app
        self._keys = tuple(key.encode() for key in settings.keys)
        self._origins = settings.cors
        machine = socket.gethostname().lower()
        own = (*LOOPBACK, settings.host, machine, f"{machine}.local", *settings.hosts)
        self._hosts = frozenset(name.lower().rstrip(".") for name in own)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            try:
                self._check(Headers(scope=scope), scope["path"], scope["method"])
            except Refused as error:
                await Outgoing(send).fail(error)
                return
        await self._app(scope, receive, send)

    def _check(self, headers: Headers, path: str, method: str) -> None:
        host = headers.get("host", "")
        if not self._is_own(host):
            raise Refused(
                f"the header Host is {host[:80]!r}, which is not a name of this server; call it by its address, or add "
                "--allow-host",
                403,
            )
        origin = headers.get("origin")
        if origin is not None and origin not in self._origins and urlsplit_host(origin) != host.lower():
            raise Refused(f"pages of {origin[:80]!r} may not call this server; allow it with --cors", 403)
        if self._keys and path not in _PUBLIC and method != "OPTIONS":
            self._check_key(headers)

    def _check_key(self, headers: Headers) -> None:
        scheme, _, key = headers.get("authorization", "").partition(" ")
        given = (key.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", "")).encode()
        # All keys are compared, so that the time does not depend on which one fits.
        if not sum([hmac.compare_digest(given, known) for known in self._keys]):
            raise Refused(
                "the API key is missing or wrong; send `Authorization: Bearer KEY`",
                401,
                code="invalid_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )

    def _is_own(self, host: str) -> bool:
        name = _name(host)
        if name in self._hosts:
            return True
        try:
            ip_address(name)
        except ValueError:
            return False
        return True


def urlsplit_host(origin: str) -> str:
    """The host and port of an origin; empty where it has none."""
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return ""


def _name(host: str) -> str:
    """The name in a header Host: without port, brackets and final dot."""
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return host.rpartition(":")[0].lower().rstrip(".") if ":" in host else host.lower().rstrip(".")
