"""Errors as HTTP statuses and the JSON that clients of OpenAI's API parse."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..errors import ClosedError, ContextOverflow, EdgespecError, GrammarError, OptionError, TemplateError

_KINDS = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
    500: "server_error",
    501: "not_implemented_error",
    503: "unavailable_error",
}


class Refused(EdgespecError):
    """A request that is answered with an error.

    Args:
        status: of HTTP.
        param: the field of the request that is wrong.
        code: a word for programs, such as "context_length_exceeded".
        headers: further headers of the response.
    """

    def __init__(
        self,
        message: str,
        status: int = 400,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.param = param
        self.code = code
        self.headers = dict(headers or {})

    def as_json(self) -> dict[str, Any]:
        """The body of the response."""
        kind = _KINDS.get(self.status, "invalid_request_error")
        return {"error": {"message": str(self), "type": kind, "param": self.param, "code": self.code}}


class ClientGone(Exception):
    """The client closed the connection, or has not read for too long."""


def refusal(error: BaseException) -> Refused:
    """What a client is told of `error`: messages of edgespec as they are, and nothing of any other."""
    match error:
        case Refused():
            return error
        case ContextOverflow():
            return Refused(str(error), param="messages", code="context_length_exceeded")
        case OptionError() | TemplateError() | GrammarError():
            return Refused(str(error))
        case ClosedError():
            return Refused("the server is ending; send the request again to its successor", 503)
        case EdgespecError():
            return Refused(str(error), 500)
    return Refused("the server failed at this request; its log says why", 500)
