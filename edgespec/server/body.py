"""The body of a request: read with a limit of size and time, and parsed."""

from __future__ import annotations

import asyncio
import json
from typing import Any, NoReturn

from starlette.requests import ClientDisconnect, Request

from .errors import ClientGone, Refused
from .fields import Fields

LARGEST = 16 << 20  #: bytes
_LARGE = 1 << 18  # bytes from which on a body is parsed on another thread


async def fields_of(request: Request, patience: float) -> Fields:
    """The fields of the JSON object in the body, which must arrive within `patience` seconds.

    Raises:
        Refused: it is too large, comes too slowly, or is not a JSON object.
        ClientGone: the connection was closed.
    """
    data = await read(request, patience)
    value = await asyncio.to_thread(parsed, data) if len(data) > _LARGE else parsed(data)
    return Fields(value)


def parsed(data: bytes) -> Any:
    """The value of the JSON text `data`.

    Raises:
        Refused: it is not JSON, or has text that is not Unicode: half of a surrogate pair.
    """
    try:
        value = json.loads(data, parse_constant=_no_constant)
        if b"\\ud" in data.lower():
            json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise Refused("the body has half of a surrogate pair (\\ud800 to \\udfff); send complete characters") from None
    except RecursionError:
        raise Refused("the body is nested too deep; send a JSON object") from None
    except ValueError as error:  # JSON, UTF-8, and numbers of thousands of digits
        raise Refused(f"the body is not valid JSON: {error}; send a JSON object") from None
    return value


async def read(request: Request, patience: float) -> bytes:
    """The body. Raises as `fields_of`."""
    announced = request.headers.get("content-length", "")
    if announced.isdigit() and int(announced[:20]) > LARGEST:
        raise _too_large()
    try:
        return await asyncio.wait_for(_joined(request), patience)
    except asyncio.TimeoutError:
        raise Refused("the body of the request did not arrive in time; send it at once", 408) from None
    except ClientDisconnect:
        raise ClientGone from None


async def _joined(request: Request) -> bytes:
    """All parts of the body. Raises Refused if they are too large together."""
    parts, size = list[bytes](), 0
    async for part in request.stream():
        size += len(part)
        if size > LARGEST:
            raise _too_large()
        parts.append(part)
    return b"".join(parts)


def _too_large() -> Refused:
    return Refused(f"the body of the request is larger than {LARGEST >> 20} MB; send less", 413)


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number of JSON")
