"""The server over a model on workers: a lost worker fails the requests that need it, and no others after it is back."""

from __future__ import annotations

import http.client
import json
from pathlib import Path
from typing import Any

import pytest

from edgespec import Device, load

from .workers import free_endpoint, require_rpc, worker

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")
pytest.importorskip("prometheus_client")

from edgespec.server.app import make_app
from edgespec.server.running import Running, listen
from edgespec.server.service import Service
from edgespec.server.settings import Settings


def ask(port: int, path: str, **fields: Any) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    try:
        body = {"prompt": "I need a table", "temperature": 0, **fields} if fields else None
        connection.request(
            "POST" if fields else "GET", path, json.dumps(body) if body else None, {"Connection": "close"}
        )
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def test_the_server_goes_on_after_a_worker_was_lost(small_pair: dict[str, Path]) -> None:
    require_rpc()
    endpoint, settings = free_endpoint(), Settings(port=0, slots=2)
    with worker(endpoint) as lost:
        runtime = load(small_pair["target"], small_pair["draft"], device=Device(512, 1, rpc=(endpoint,)), fetch=False)
        others = [runtime, runtime.another()]
        service = Service(settings)
        service.open(others, settings)
        with listen(settings) as listening:
            port = listening.getsockname()[1]
            running = Running(make_app(service), service, listening)
            try:
                text = _text(port)
                lost.kill()
                lost.wait()
                for _ in range(2):
                    status, body = ask(port, "/v1/completions", max_tokens=12)
                    error = json.loads(body)["error"]
                    assert status == 500
                    assert f"no worker can be reached at {endpoint}" in error["message"]
                    assert "\n" not in error["message"]
                assert ask(port, "/health")[0] == 200
                with worker(endpoint):
                    assert [_text(port) for _ in range(3)] == [text] * 3
            finally:
                running.stop()
                assert running.ended(30)
                service.close()
                for each in reversed(others):
                    each.close()


def _text(port: int) -> str:
    status, body = ask(port, "/v1/completions", max_tokens=12)
    assert status == 200, body
    said: str = json.loads(body)["choices"][0]["text"]
    return said
