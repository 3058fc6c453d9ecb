"""A proxy of another server of OpenAI's API: the address and the page stay where they are, the work moves.

Requests and answers are passed on as they are, usage and predictions included. What this server checks of keys, hosts
and origins is checked before.
"""

from __future__ import annotations

import logging
import ssl
from collections.abc import Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass
from urllib.parse import urlsplit

import httpx
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import Receive, Scope, Send

from ..errors import OptionError
from .body import read
from .endpoint import unless_gone
from .errors import ClientGone, Refused, refusal
from .outgoing import SSE, Outgoing, encoded
from .security import Guard
from .settings import Settings

_TIMES = httpx.Timeout(None, connect=10.0)  # an answer may take any time, and ends when the client goes
_log = logging.getLogger("edgespec.server")
#: Headers of one connection (RFC 9110, 7.6.1), and those that are made anew.
_OF_CONNECTIONS = ("connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection", "te")
_ANEW = ("host", "content-length", "expect", "date", "server")
_OWN = frozenset((*_OF_CONNECTIONS, "trailer", "transfer-encoding", "upgrade", *_ANEW))
#: What a web page may not bring to another server.
_OF_PAGES = frozenset(("cookie", "origin", "referer", "x-api-key"))


@dataclass(frozen=True, slots=True)
class Upstream:
    """The other server.

    Args:
        url: without /v1 and a final slash.
        key: sent as its API key; None for none.
    """

    url: str
    key: str | None = None

    @classmethod
    def parse(cls, url: str, key: str | None = None) -> Upstream:
        """The server at `url`, with or without /v1.

        Raises:
            OptionError: it is no URL of HTTP, has a password, or the key cannot be sent.
        """
        wanted = "give one like http://127.0.0.1:8000, or with https"
        try:
            parts = urlsplit(url)
            valid = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
        except ValueError:
            valid = False
        if not valid or parts.query or parts.fragment or not url.isprintable() or " " in url:
            raise OptionError(f"{url!r:.80} is not the URL of a server; {wanted}")
        if parts.username is not None or parts.password is not None:
            raise OptionError(f"a URL with a password is shown in logs; {wanted}, and the key in --upstream-key-file")
        if key is not None and not (key.isascii() and key.isprintable() and key.strip() == key != ""):
            raise OptionError("the key of the other server must be printable ASCII without spaces around it")
        return cls(url.rstrip("/").removesuffix("/v1"), key)

    def __repr__(self) -> str:
        return f"Upstream({self.url!r})"  # without the key, which no log may have


class Proxy:
    """An ASGI application that passes requests on.

    Args:
        settings: of this server: whether clients give it a key, which is not for the other one, and its patience.
    """

    def __init__(self, upstream: Upstream, settings: Settings) -> None:
        self._upstream, self._keyed, self._patience = upstream, bool(settings.keys), settings.patience
        self._trusted = ssl.create_default_context()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        out = Outgoing(send, self._patience)
        answer = _Passed(send, out)
        try:
            request = Request(scope, receive)
            body = await read(request, self._patience)
            await unless_gone(receive, self._answer(self._asked(request, body), answer))
        except ClientGone:
            return
        except httpx.HTTPError as error:
            reason = " ".join(str(error).split()) or type(error).__name__
            _log.warning("%s: %s", self._upstream.url, reason)
            told = Refused(
                f"the server at {self._upstream.url} cannot be reached, or broke off ({reason}); start it, or correct "
                "--upstream",
                502,
            )
            with suppress(ClientGone):
                await (answer.fail(told) if answer.begun else out.fail(told))
        except Exception as error:  # everything that a request does is answered
            if answer.begun:
                raise
            with suppress(ClientGone):
                await out.fail(refusal(error))

    def _asked(self, request: Request, body: bytes) -> httpx.Request:
        named = request.headers.get("connection", "").lower().replace(" ", "").split(",")
        dropped = {*_OWN, *_OF_PAGES, *named}
        if self._keyed or self._upstream.key is not None:
            dropped.add("authorization")
        headers = [(name, value) for name, value in request.headers.items() if name not in dropped]
        if "accept-encoding" not in request.headers:
            headers.append(("accept-encoding", "identity"))  # httpx would ask for what the client may not read
        if self._upstream.key is not None:
            headers.append(("authorization", f"Bearer {self._upstream.key}"))
        path = request.scope.get("raw_path", request.url.path.encode()).decode("ascii", "replace")
        query = f"?{request.url.query}" if request.url.query else ""
        return httpx.Request(
            request.method, f"{self._upstream.url}{path}{query}", headers=headers, content=body or None
        )

    async def _answer(self, asked: httpx.Request, answer: _Passed) -> None:
        # A connection of its own: it is closed where the client goes, and the other server stops then.
        async with (
            httpx.AsyncClient(verify=self._trusted, timeout=_TIMES, trust_env=False) as client,
            aclosing(await client.send(asked, stream=True)) as response,
        ):
            headers = [(name, value) for name, value in response.headers.multi_items() if name not in _OWN]
            if "content-length" in response.headers and "transfer-encoding" not in response.headers:
                headers.append(("content-length", response.headers["content-length"]))
            await answer.begin(response.status_code, headers)
            async for part in response.aiter_raw():
                await answer.part(part)
            await answer.end()


class _Passed:
    """An answer of the other server on its way to the client."""

    def __init__(self, send: Send, out: Outgoing) -> None:
        self._send = send
        self._out = out
        self.begun = False
        self._events = False

    async def begin(self, status: int, headers: Sequence[tuple[str, str]]) -> None:
        self.begun = True
        self._events = dict(headers).get("content-type", "").startswith(SSE)
        pairs = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers]
        await self._send({"type": "http.response.start", "status": status, "headers": pairs})

    async def part(self, body: bytes) -> None:
        await self._out.part(body)

    async def end(self) -> None:
        await self._out.end()

    async def fail(self, error: Refused) -> None:
        """As the last event of a stream; a body that is no stream stays incomplete, and the connection is closed."""
        if not self._events:
            raise error
        await self.part(b"data: " + encoded(error.as_json()) + b"\n\n")
        await self.end()


def make_proxy(upstream: Upstream, settings: Settings, routes: Sequence[BaseRoute] = ()) -> Starlette:
    """The ASGI application that passes /v1 and /health on.

    Args:
        settings: of this server: its keys, hosts and origins.
        routes: further ones, which come first.
    """
    proxy = Proxy(upstream, settings)
    guards = [Middleware(Guard, settings=settings)]
    if settings.cors:
        guards.append(
            Middleware(CORSMiddleware, allow_origins=list(settings.cors), allow_methods=["*"], allow_headers=["*"])
        )
    return Starlette(
        routes=[*routes, Route("/health", proxy), Route("/v1/{path:path}", proxy)],
        middleware=guards,
        exception_handlers={HTTPException: _no_such, Refused: _refused, Exception: _refused},
    )


async def _no_such(request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    told = Refused(f"{request.method} {request.url.path[:200]} is not passed on; /v1 and /health are", status)
    return await _refused(request, told)


async def _refused(_request: Request, error: Exception) -> Response:
    told = refusal(error)
    return Response(encoded(told.as_json()), told.status, told.headers, "application/json")
