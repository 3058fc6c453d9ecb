"""The page of the server: static files of this package, none of which loads anything from elsewhere."""

from __future__ import annotations

from pathlib import Path

from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import Route

_FOLDER = Path(__file__).parent
_FILES = {"/": "page.html", "/page.css": "page.css", "/page.js": "page.js"}
_HEADERS = {
    "content-security-policy": "default-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "cache-control": "no-cache",
}


def routes() -> list[Route]:
    """The routes of the files that are there."""
    return [_route(path, _FOLDER / name) for path, name in _FILES.items() if (_FOLDER / name).is_file()]


def _route(path: str, file: Path) -> Route:
    async def page(_request: Request) -> Response:
        return FileResponse(file, headers=_HEADERS)

    return Route(path, page)
