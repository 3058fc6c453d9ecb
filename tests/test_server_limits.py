"""What a server refuses, whom it serves, and what ends an answer."""

from __future__ import annotations

import json
import random
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import openai
import pytest

from edgespec import OptionError, Sampling, Text
from edgespec.backends.toy import Bytes, ngram_rule
from edgespec.controller.calibration import Share
from edgespec.server.settings import Settings
from edgespec.types import Floats

from .served import HELLO, Served, body, refused, serving
from .toy_runtime import Gate

ENDLESS = ngram_rule(250, order=2, seed=5)


def never_ending(context: Any) -> Floats:
    """A rule that says neither an end nor a special token."""
    import numpy as np  # noqa: PLC0415

    row: Floats = np.full(Bytes.size, -20, dtype=np.float32)
    row[:250] = ENDLESS(context)
    return row


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with serving() as served:
        yield served


def until(true: Callable[[], bool], seconds: float = 20.0) -> None:
    """Wait for a condition; the limit is for hangs."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it hangs"
        time.sleep(0.01)


def gated(at: int) -> Gate:
    """A gate at the pass over a token; the prompt of HELLO is shorter."""
    return Gate(never_ending, at)


def test_a_client_that_goes_frees_the_slot_within_a_pass() -> None:
    gate = gated(60)
    with serving(gate, context=4096) as served:
        stream = served.openai.chat.completions.create(model="x", messages=HELLO, stream=True, temperature=0)
        next(iter(stream))
        assert gate.reached.wait(20)
        assert served.busy() == 1
        stream.close()
        time.sleep(0.2)  # it is told while the pass is under way
        gate.go_on.set()
        until(lambda: served.busy() == 0)
        assert len(served.runtime.session.tokens) <= 61, "one pass more at most"
        assert served.post("/v1/chat/completions", body(max_tokens=3)).status_code == 200


def test_a_client_that_goes_before_an_answer_without_a_stream_frees_the_slot_too() -> None:
    gate = gated(60)
    with serving(gate, context=4096) as served:
        with socket.create_connection((served.url.split(":")[1][2:], int(served.url.rpartition(":")[2]))) as client:
            content = json.dumps(body(max_tokens=None, temperature=0)).encode()
            head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(content)}\r\n\r\n"
            client.sendall(head.encode() + content)
            assert gate.reached.wait(20)
        time.sleep(0.2)
        gate.go_on.set()
        until(lambda: served.busy() == 0)
        assert len(served.runtime.session.tokens) <= 61


def test_a_full_queue_is_429_and_requests_are_answered_in_order() -> None:
    """In order of the passes: clients on loopback may read their answers in another one."""
    computed: list[int] = []

    def noting(context: Sequence[int]) -> Floats:
        if context[0] not in computed[-1:]:
            computed.append(context[0])
        return never_ending(context)

    gate = Gate(noting, 40)
    with serving(gate, queue=2) as served, ThreadPoolExecutor(8) as threads:

        def ask(letter: str) -> httpx.Response:
            return served.post("/generate", {"prompt": letter * 30, "max_tokens": 20, "temperature": 0})

        answers = [threads.submit(ask, "a")]
        assert gate.reached.wait(20)
        for waiting, letter in enumerate("bc", 1):
            answers.append(threads.submit(ask, letter))
            until(lambda: served.status()["queue"]["length"] == waiting)  # noqa: B023 - it returns before the next one
        response = served.post("/v1/chat/completions", body())
        assert refused(response, 429)["code"] == "queue_full"
        assert int(response.headers["retry-after"]) >= 1
        with pytest.raises(openai.RateLimitError):
            served.openai.chat.completions.create(model="x", messages=HELLO)
        gate.go_on.set()
        assert [each.result(30).status_code for each in answers] == [200, 200, 200]
    assert bytes(computed[-3:]) == b"abc"


def test_one_that_waits_and_goes_leaves_the_queue() -> None:
    gate = gated(40)
    with serving(gate) as served, ThreadPoolExecutor(2) as threads:
        first = threads.submit(served.post, "/generate", {"prompt": "a" * 30, "max_tokens": 20, "temperature": 0})
        assert gate.reached.wait(20)
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(f"{served.url}/v1/chat/completions", json=body(), timeout=0.3)
        until(lambda: served.status()["queue"]["length"] == 0)
        gate.go_on.set()
        assert first.result(30).status_code == 200
        assert served.post("/v1/chat/completions", body()).status_code == 200
        assert served.busy() == 0


def test_a_wrong_key_is_401() -> None:
    with serving(keys=("secret", "another")) as served:
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "secret"}, {"X-Api-Key": "sécret"}):
            given = {name: value.encode() for name, value in headers.items()}
            response = served.post("/v1/chat/completions", body(), headers=given)
            assert refused(response, 401)["code"] == "invalid_api_key"
            assert "secret" not in response.text
        for headers in ({"Authorization": "Bearer secret"}, {"X-Api-Key": "another"}):
            assert served.post("/v1/chat/completions", body(), headers=headers).status_code == 200
        assert served.get("/health").status_code == 200
        assert served.get("/v1/models").status_code == served.get("/metrics").status_code == 401
        with pytest.raises(openai.AuthenticationError):
            served.openai.models.list()


def test_other_machines_are_served_only_with_a_key() -> None:
    for host in ("0.0.0.0", "::", "192.168.1.2", "my-desktop"):  # noqa: S104
        with pytest.raises(OptionError, match="--api-key"):
            Settings(host=host)
        assert Settings(host=host, keys=("x",)).host == Settings(host=host, open=True).host == host
    for host in ("127.0.0.1", "localhost", "::1", "127.8.8.8"):
        assert Settings(host=host).host == host
    for key in ("", " x", "é", "a\nb"):
        with pytest.raises(OptionError, match="API key"):
            Settings(keys=(key,))


def test_a_name_that_was_rebound_is_refused(server: Served) -> None:
    for host in ("evil.example", "evil.example:8080", "localhost.evil.example", "", "127.0.0.1.evil.example"):
        refused(server.post("/v1/chat/completions", body(), headers={"Host": host}), 403)
    for host in ("localhost", "LOCALHOST:80", "127.0.0.1:1", "[::1]:8080", "192.168.0.7"):
        assert server.get("/v1/models", headers={"Host": host}).status_code == 200
    with serving(hosts=("ai.home",)) as served:
        assert served.get("/v1/models", headers={"Host": "ai.home:80"}).status_code == 200


def test_pages_of_other_origins_are_refused_unless_allowed(server: Served) -> None:
    evil = {"Origin": "https://evil.example"}
    response = server.post("/v1/chat/completions", body(), headers=evil)
    refused(response, 403)
    assert "access-control-allow-origin" not in response.headers
    refused(server.post("/v1/chat/completions", body(), headers={"Origin": "null"}), 403)
    assert server.post("/v1/chat/completions", body(), headers={"Origin": server.url}).status_code == 200
    with serving(cors=("https://good.example",), keys=("k",)) as served:
        good = {"Origin": "https://good.example"}
        asked = {**good, "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization"}
        allowed = httpx.options(f"{served.url}/v1/chat/completions", headers=asked)
        assert allowed.status_code == 200
        assert allowed.headers["access-control-allow-origin"] == "https://good.example"
        answered = served.post("/v1/chat/completions", body(), headers={**good, "Authorization": "Bearer k"})
        assert answered.headers["access-control-allow-origin"] == "https://good.example"
        refused(served.post("/v1/chat/completions", body(), headers={**evil, "Authorization": "Bearer k"}), 403)


def test_a_large_body_is_refused_before_it_is_read(server: Served) -> None:
    refused(server.post("/v1/chat/completions", content=b" " * (16 << 20) + b"{}"), 413)

    def parts() -> Iterator[bytes]:
        for _ in range(17):
            yield b" " * (1 << 20)

    response = httpx.post(f"{server.url}/v1/chat/completions", content=parts(), timeout=60)
    refused(response, 413)


NAMES = (
    *("temperature", "top_p", "top_k", "min_p", "seed", "n", "stop", "stream", "stream_options", "logit_bias", "user"),
    *("tools", "tool_choice", "response_format", "grammar", "logprobs", "top_logprobs", "prediction", "edgespec"),
    *("prompt", "input", "content", "tokens", "max_completion_tokens", "reasoning_effort", "chat_template_kwargs"),
)


def malformed(rng: random.Random) -> bytes:
    """A request that no server can answer, or can: many are nearly right."""
    values: list[Any] = [None, True, -1, 1e308, 10**400, "x", "\ud800", [], {}, [[[]]], {"role": 3}, "\0", "日本"]

    def value(depth: int) -> Any:
        kind = rng.randrange(4 if depth < 4 else 2)
        if kind < 2:
            return rng.choice(values)
        if kind == 2:
            return [value(depth + 1) for _ in range(rng.randrange(4))]
        return {rng.choice(("role", "content", "type", "text", "k")): value(depth + 1) for _ in range(rng.randrange(4))}

    names = [*body(), *NAMES]
    content = {**body(max_tokens=2), **{rng.choice(names): value(0) for _ in range(rng.randrange(1, 4))}}
    data = json.dumps(content if rng.random() < 0.8 else value(0)).encode()
    if rng.random() < 0.3:
        data = data[: rng.randrange(len(data) + 1)]
    if rng.random() < 0.2 and data:
        at = rng.randrange(len(data))
        data = data[:at] + bytes([rng.randrange(256)]) + data[at + 1 :]
    return data


@pytest.mark.parametrize("seed", range(10))
def test_malformed_requests_are_4xx_with_one_line(server: Served, seed: int) -> None:
    rng = random.Random(seed)  # noqa: S311 - no secret
    paths = ("/v1/chat/completions", "/v1/completions", "/generate", "/tokenize", "/detokenize")
    refusals = 0
    with httpx.Client(base_url=server.url, timeout=60) as client:
        while refusals < 100:
            response = client.post(rng.choice(paths), content=malformed(rng))
            assert response.status_code < 500, response.text
            if response.status_code >= 400:
                refused(response, response.status_code)
                refusals += 1
    assert server.post("/v1/chat/completions", body()).status_code == 200
    assert server.busy() == 0


def test_deep_and_odd_bodies_are_refused(server: Served) -> None:
    for content in (b"[" * 100_000, b'{"a":' * 5000, b"\xff", b"", b"NaN", b'{"n": NaN}', b"9" * 5000, b'"\\udc00"'):
        refused(server.post("/v1/chat/completions", content=content), 400)
    for value in ('{"prompt": "\\ud800"}', '{"prompt": [1e9]}', '{"prompt": [true]}', '{"prompt": [-1]}'):
        refused(server.post("/v1/completions", content=value.encode()), 400)


def test_unknown_paths_methods_and_models() -> None:
    with serving(strict_model=True) as served:
        refused(served.get("/v1/nothing"), 404)
        refused(served.get("/v1/chat/completions"), 405)
        refused(served.post("/v1/embeddings", {"input": "x"}), 501)
        assert refused(served.get("/v1/models/other"), 404)["code"] == "model_not_found"
        assert refused(served.post("/v1/chat/completions", body(model="other")), 404)["code"] == "model_not_found"
        assert served.openai.models.retrieve("toy").id == "toy"
        assert [model.id for model in served.openai.models.list()] == ["toy"]


def test_it_listens_while_the_model_is_loaded() -> None:
    with serving(load=False) as served:
        assert served.get("/health").status_code == 503
        refused(served.post("/v1/chat/completions", body()), 503)
        served.service.open([served.runtime], served.service.settings)
        assert served.get("/health").json() == {"status": "ok"}
        assert served.post("/v1/chat/completions", body()).status_code == 200


def test_the_status_has_the_acceptance_of_the_runtime(monkeypatch: pytest.MonkeyPatch) -> None:
    known = {"lookup": Share(0.8, 5.0), "model": Share(0.0, 0.0)}
    with serving() as served:
        monkeypatch.setattr(type(served.runtime), "acceptance", known)
        told = served.status()["acceptance"]
    assert told == {"lookup": {"rate": 0.8, "tries": 5.0}, "model": {"rate": None, "tries": 0.0}}


def test_sixteen_clients_at_once_get_what_the_library_says() -> None:
    with serving(slots=3) as served, ThreadPoolExecutor(16) as threads:

        def ask(seed: int) -> str:
            asked = body(temperature=1, seed=seed, stream=bool(seed % 2))
            if not asked["stream"]:
                found = served.post("/v1/chat/completions", asked).json()
                return str(found["choices"][0]["message"]["content"])
            chunks = served.openai.chat.completions.create(**asked)
            return "".join(chunk.choices[0].delta.content or "" for chunk in chunks)

        texts = list(threads.map(ask, range(16)))
        for seed, text in enumerate(texts):
            events = served.runtime.chat(HELLO, Sampling(temperature=1, seed=seed), max_tokens=12)
            assert text == "".join(event.text for event in events if isinstance(event, Text))


def test_a_conversation_finds_the_slot_that_has_it() -> None:
    with serving(slots=2) as served:
        talks: list[list[dict[str, Any]]] = [[{"role": "user", "content": text * 30}] for text in ("ab", "cd")]
        for turn in range(3):
            for talk in talks:
                found = served.post("/v1/chat/completions", body(messages=talk)).json()
                cached = found["usage"]["prompt_tokens_details"]["cached_tokens"]
                assert (cached > 40) == (turn > 0)
                talk += [found["choices"][0]["message"], {"role": "user", "content": "go on"}]


def test_a_client_that_does_not_read_pauses_the_engine() -> None:
    with serving(never_ending, context=4096, patience=1.0) as served:
        served.listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)  # inherited by connections
        host, port = "127.0.0.1", int(served.url.rpartition(":")[2])
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.connect((host, port))
            asked = body(max_tokens=None, stream=True, temperature=0, edgespec={"spans": True})
            content = json.dumps(asked).encode()
            head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(content)}\r\n\r\n"
            client.sendall(head.encode() + content)
            until(lambda: served.busy() == 1)
            until(lambda: served.busy() == 0)
            assert len(served.runtime.session.tokens) < 4000, "cancelled before its end"
        assert served.post("/v1/chat/completions", body()).status_code == 200


def test_the_end_refuses_and_cancels_within_seconds() -> None:
    slow = gated(10_000)
    with serving(slow, context=4096) as served:

        def pauses(context: Any) -> Floats:
            time.sleep(0.01)
            return never_ending(context)

        slow._rule = pauses
        texts: list[str] = []

        def read() -> None:
            asked = body(stream=True, max_tokens=None)
            with httpx.stream("POST", f"{served.url}/v1/chat/completions", json=asked) as response:
                texts.extend(response.iter_lines())

        reader = threading.Thread(target=read)
        reader.start()
        until(lambda: served.busy() == 1)
        served.running.stop()
        assert served.running.ended(20)
        reader.join(20)
        assert not reader.is_alive()
        error = json.loads([line for line in texts if line][-1].removeprefix("data: "))
        assert "ending" in error["error"]["message"]
        with pytest.raises(httpx.ConnectError):
            served.get("/health")
