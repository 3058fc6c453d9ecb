"""How long a server waits for a client, and how a client knows that it is there."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from edgespec import OptionError
from edgespec.server.app import make_app
from edgespec.server.channel import Channel
from edgespec.server.errors import ClientGone
from edgespec.server.outgoing import Outgoing
from edgespec.server.settings import Settings

from .served import Served, body, serving
from .test_server_limits import gated, never_ending

HEAD = b"POST /tokenize HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 200\r\n\r\n"


@pytest.fixture(scope="module")
def hasty() -> Iterator[Served]:
    with serving(patience=0.3) as served:
        yield served


def connected(server: Served) -> socket.socket:
    return socket.create_connection((server.url.split(":")[1][2:], int(server.url.rpartition(":")[2])), 10)


def dribbled(client: socket.socket, data: bytes) -> bytes:
    """What the server says while `data` is sent byte by byte; empty if it closes the connection.

    A byte that is on its way when the server closes resets the connection.
    """
    client.settimeout(0.1)
    for n in range(len(data)):
        try:
            return client.recv(100)
        except TimeoutError:
            pass
        except ConnectionResetError:
            return b""
        with contextlib.suppress(OSError):
            client.sendall(data[n : n + 1])
    raise AssertionError("the server waits for all of it")


def test_a_body_that_comes_byte_by_byte_is_given_up(hasty: Served) -> None:
    """Each byte comes in time, the body does not."""
    with connected(hasty) as client:
        client.sendall(HEAD)
        assert dribbled(client, b" " * 199).startswith(b"HTTP/1.1 408 ")


def test_a_head_that_comes_byte_by_byte_is_given_up(hasty: Served) -> None:
    with connected(hasty) as client:
        assert dribbled(client, HEAD) == b""


def test_a_connection_that_sends_nothing_is_closed(hasty: Served) -> None:
    with connected(hasty) as client:
        client.settimeout(10)
        assert client.recv(100) == b""


def test_a_later_head_that_comes_byte_by_byte_is_given_up(hasty: Served) -> None:
    with connected(hasty) as client:
        client.sendall(b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        client.settimeout(10)
        said = b""
        while not said.endswith(b"}"):
            said += client.recv(1000)
        assert said.startswith(b"HTTP/1.1 200 ")
        assert dribbled(client, HEAD) == b""


def test_a_connection_is_kept_between_requests_and_while_an_answer_is_computed() -> None:
    """Silence after an answer, and an answer that takes longer than a head may."""
    gate = gated(60)
    with serving(gate, context=4096, patience=0.3) as server, httpx.Client(base_url=server.url, timeout=20) as client:
        answers: list[int] = []
        asking = threading.Thread(
            target=lambda: answers.append(client.post("/v1/chat/completions", json=body(max_tokens=100)).status_code)
        )
        asking.start()
        assert gate.reached.wait(10)
        threading.Event().wait(0.6)  # what is not to happen needs time to happen
        gate.go_on.set()
        asking.join(20)
        threading.Event().wait(0.6)
        assert answers == [200]
        assert client.get("/health").status_code == 200


def test_a_client_that_does_not_read_frees_the_slot() -> None:
    """The application is called with a `send` that never returns, as uvicorn's where the socket is full."""

    async def asked(server: Served) -> None:
        asking = json.dumps(body(stream=True, max_tokens=3000)).encode()
        messages = [{"type": "http.request", "body": asking, "more_body": False}]
        never = asyncio.Event()

        async def receive() -> Any:
            if not messages:
                await never.wait()
            return messages.pop()

        async def send(message: Any) -> None:
            if message["type"] == "http.response.body":
                await never.wait()

        scope = {
            "type": "http",
            "method": "POST",
            "path": "/v1/chat/completions",
            "query_string": b"",
            "headers": [(b"host", b"127.0.0.1")],
        }
        await asyncio.wait_for(make_app(server.service)(scope, receive, send), 20)
        await asyncio.wait_for(freed(server), 20)

    async def freed(server: Served) -> None:
        while server.busy():
            await asyncio.sleep(0.01)  # the slot is given back on this loop, which must not end before

    with serving(never_ending, context=4096, patience=0.2) as server:
        asyncio.run(asked(server))


def test_comments_keep_a_stream_open() -> None:
    gate = gated(60)
    asking = body(stream=True, max_tokens=100)
    with (
        serving(gate, context=4096, heartbeat=0.05) as server,
        httpx.stream("POST", f"{server.url}/v1/chat/completions", json=asking, timeout=20) as found,
    ):
        lines = found.iter_lines()
        assert any(line == ": " for line in lines)
        gate.go_on.set()
        assert any(line == "data: [DONE]" for line in lines)


def test_a_stream_of_lines_gets_no_comments() -> None:
    sent: list[bytes] = []

    async def send(message: Any) -> None:
        sent.append(message.get("body", b""))

    async def streamed(kind: str) -> None:
        out, channel = Outgoing(send, heartbeat=0.01), Channel[int]()
        await out.begin(kind)
        asyncio.get_running_loop().call_later(0.1, channel.end)
        async for _ in out.kept_alive(channel):
            pass

    asyncio.run(streamed("application/x-ndjson"))
    assert not any(sent)
    asyncio.run(streamed("text/event-stream"))
    assert b": \n\n" in sent


def test_what_is_not_read_in_time_ends_the_answer() -> None:
    async def stuck(_message: Any) -> None:
        await asyncio.Event().wait()

    with pytest.raises(ClientGone):
        asyncio.run(Outgoing(stuck, patience=0.01).part(b"x"))


@pytest.mark.parametrize("seconds", [0, -1, float("inf"), float("nan")])
@pytest.mark.parametrize("name", ["patience", "heartbeat"])
def test_times_that_make_no_sense_are_refused(name: str, seconds: float) -> None:
    make: Callable[..., Settings] = Settings
    with pytest.raises(OptionError, match=name):
        make(**{name: seconds})
