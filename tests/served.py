"""A server over a toy model on a free port of loopback, in a thread."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import openai
from openai import OpenAI

from edgespec import Runtime
from edgespec.backends.toy import Bytes, Rule, scripted
from edgespec.server.app import make_app
from edgespec.server.running import Running, address, listen
from edgespec.server.service import Service
from edgespec.server.settings import Settings

from .toy_runtime import TALK, opened

HELLO = [{"role": "user", "content": "Hello"}]
#: A text that it repeats, so that look-ups draft it, and mostly rightly.
RECITED = "the quick brown fox jumps over the lazy dog, and "


def reciting() -> Rule:
    """A rule that repeats RECITED."""
    return scripted(Bytes.size, list(RECITED.encode()))


@dataclass
class Served:
    """A server and clients of it."""

    url: str
    service: Service
    runtime: Runtime
    running: Running
    listening: socket.socket
    openai: Any  #: OpenAI's client, which does not try again; its overloads fit no request from a dict

    def post(self, path: str, value: Any = None, **more: Any) -> httpx.Response:
        return httpx.post(self.url + path, json=value, timeout=60, **more)

    def get(self, path: str, **more: Any) -> httpx.Response:
        return httpx.get(self.url + path, timeout=60, **more)

    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = self.get("/v1/edgespec/status").json()
        return found

    def busy(self) -> int:
        """Slots with a request."""
        return sum(slot["busy"] for slot in self.status()["slots"])


@contextmanager
def serving(
    rule: Rule | None = None, *, slots: int = 1, context: int = 256, load: bool = True, **settings: Any
) -> Iterator[Served]:
    """A server of a toy model. `settings` are those of `Settings`."""
    chosen = Settings(name="toy", port=0, slots=slots, **settings)
    service = Service(chosen)
    with listen(chosen) as listening:
        running = Running(make_app(service), service, listening)
        runtime, _ = opened(rule or TALK, context=context)
        try:
            if load:
                service.open([runtime, *(runtime.another() for _ in range(slots - 1))], chosen)
            url = address(listening)
            with OpenAI(base_url=f"{url}/v1", api_key="any", max_retries=0, timeout=60) as client:
                yield Served(url, service, runtime, running, listening, client)
        finally:
            running.stop()
            assert running.ended(20), "the server does not end"
            service.close()
            runtime.close()


def body(**fields: Any) -> dict[str, Any]:
    """A request of a chat completion."""
    return {"model": "toy", "messages": HELLO, "max_tokens": 12, **fields}


def refused(response: httpx.Response, status: int) -> dict[str, Any]:
    """The error of a response, which is one line."""
    assert response.status_code == status, response.text
    error: dict[str, Any] = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"]
    assert "\n" not in error["message"]
    assert "Traceback" not in response.text
    return error


def said(chunks: Sequence[openai.types.chat.ChatCompletionChunk]) -> str:
    """The text of the chunks of one answer."""
    return "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
