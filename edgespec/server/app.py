"""The routes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from . import ollama, openai_calls, page, responses, tokens
from .endpoint import Endpoint
from .errors import Refused, refusal
from .fields import Fields
from .openai_requests import no_model
from .outgoing import Outgoing, encoded
from .security import Guard
from .service import Service

_Call = Callable[[Service, Fields, Outgoing], Any]
_Values = Callable[[Request], Awaitable[Any]]

#: The calls that read a JSON object.
_CALLS: dict[str, _Call] = {
    "/v1/chat/completions": openai_calls.chat_completions,
    "/v1/completions": openai_calls.completions,
    "/v1/responses": responses.responses,
    "/generate": openai_calls.generate,
    "/api/chat": ollama.chat,
    "/api/generate": ollama.generate,
    "/api/show": ollama.show,
    "/tokenize": tokens.tokenize,
    "/detokenize": tokens.detokenize,
}
_KNOWN = f"there are {', '.join(_CALLS)}, GET /v1/models and others (docs/server.md)"
#: These exist elsewhere, and not here.
_MISSING = ("/v1/embeddings", "/api/embed", "/api/embeddings", "/v1/images/generations", "/v1/audio/speech")


def make_app(service: Service, routes: Sequence[BaseRoute] = ()) -> Starlette:
    """The ASGI application of a service.

    Args:
        routes: further ones, which come first.
    """
    posts = [_post(service, path, call) for path, call in _CALLS.items()]
    refusing = [Route(path, _not_here, methods=["POST"]) for path in _MISSING]
    settings = service.settings
    guards = [Middleware(Guard, settings=settings)]
    if settings.cors:
        guards.append(
            Middleware(CORSMiddleware, allow_origins=list(settings.cors), allow_methods=["*"], allow_headers=["*"])
        )
    return Starlette(
        routes=[*routes, *page.routes(), *posts, *_gets(service), *refusing],
        middleware=guards,
        exception_handlers={HTTPException: _http_error, Refused: _refused, Exception: _refused},
    )


def _post(service: Service, path: str, call: _Call) -> Route:
    endpoint = Endpoint(path, partial(call, service), service.metrics, service.settings, lambda: service.computing)
    return Route(path, endpoint, methods=["POST"])


def _gets(service: Service) -> list[Route]:
    async def health(_request: Request) -> Response:
        if not service.is_ready:
            return _json({"status": "loading model"}, 503)
        return _json({"status": "ok"})

    async def metrics(_request: Request) -> Response:
        return Response(service.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    async def status(_request: Request) -> Response:
        return _json(service.status())

    async def models(_request: Request) -> Response:
        return _json({"object": "list", "data": [_model(service)]})

    async def model(request: Request) -> Response:
        name = request.path_params["name"]
        if name != service.settings.name:
            raise no_model(name, service.settings)
        return _json(_model(service))

    async def version(_request: Request) -> Response:
        return _json(ollama.about())

    async def tags(_request: Request) -> Response:
        return _json(ollama.tags(service))

    return [
        Route("/health", health),
        Route("/api/version", version),
        Route("/api/tags", tags),
        Route("/metrics", metrics),
        Route("/v1/edgespec/status", status),
        Route("/v1/models", models),
        Route("/v1/models/{name:path}", model),
    ]


def _model(service: Service) -> dict[str, Any]:
    about = {"context": service.runtime.context, "description": service.runtime.description} if service.is_ready else {}
    return {
        "id": service.settings.name,
        "object": "model",
        "created": service.started,
        "owned_by": "edgespec",
        "meta": about,
    }


async def _not_here(request: Request) -> Response:
    raise Refused(f"{request.url.path} is not implemented: this server answers in text", 501)


async def _http_error(request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    reason = "has no such method" if status == 405 else "does not exist"
    headers = error.headers if isinstance(error, HTTPException) else None
    refused = Refused(f"{request.method} {request.url.path[:200]} {reason}; {_KNOWN}", status)
    return _json(refused.as_json(), status, headers)


async def _refused(_request: Request, error: Exception) -> Response:
    refused = refusal(error)
    return _json(refused.as_json(), refused.status, refused.headers)


def _json(value: Any, status: int = 200, headers: Any = None) -> Response:
    return Response(encoded(value), status, headers, "application/json")
