"""The page: a chat in the browser, of three files without outside assets. It calls `/v1/chat/completions`."""

from __future__ import annotations

from importlib.resources import files

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

_HEADERS = {
    # Scripts and styles of this server only: text of a model could not run even if it became markup.
    "Content-Security-Policy": "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}
_FILES = {
    "/": ("page.html", "text/html; charset=utf-8"),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
    "/page.js": ("page.js", "text/javascript; charset=utf-8"),
    "/favicon.ico": ("page.svg", "image/svg+xml"),
}


def routes() -> list[Route]:
    """The routes of the page's files."""
    return [_route(path, name, kind) for path, (name, kind) in _FILES.items()]


def _route(path: str, name: str, kind: str) -> Route:
    content = (files(__package__) / name).read_bytes()

    async def answer(_request: Request) -> Response:
        return Response(content, headers=_HEADERS, media_type=kind)

    return Route(path, answer)
