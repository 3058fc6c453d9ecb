"""`serve --upstream`: another server behind this address."""

from __future__ import annotations

import http.client
import json
import logging
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from edgespec.errors import OptionError

from .commandline import refused, run

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")
pytest.importorskip("prometheus_client")

from edgespec import load
from edgespec.server.app import make_app
from edgespec.server.running import Running, listen
from edgespec.server.service import Service
from edgespec.server.settings import Settings
from edgespec.server.upstream import Upstream, make_proxy


@dataclass
class Behind:
    """What the other server was asked, and whether the proxy hung up."""

    asked: list[tuple[str, str, dict[str, str], bytes]] = field(default_factory=list)
    gone: threading.Event = field(default_factory=threading.Event)
    url: str = ""


@contextmanager
def other_server() -> Iterator[Behind]:
    """A stand-in for another server, which does what the path says; a stream goes on until its reader goes."""
    behind = Behind()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            headers = {name.lower(): value for name, value in self.headers.items()}
            behind.asked.append((self.command, self.path, headers, body))
            if "stream" in self.path or "breaks" in self.path:
                self._stream()
                return
            told = b'{"usage": {"accepted_prediction_tokens": 3}}'
            self.send_response(429 if "full" in self.path else 200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Retry-After", "7")
            self.send_header("X-Twice", "a")
            self.send_header("X-Twice", "b")
            self.send_header("Content-Length", str(len(told) + 9 * ("cut" in self.path)))
            self.end_headers()
            self.wfile.write(told)
            if "cut" in self.path:
                self.close_connection = True

        do_GET = do_POST  # noqa: N815

        def _stream(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            try:
                for number in range(2000):
                    event = b'data: {"n": %d}\n\n' % number
                    self.wfile.write(b"%x\r\n%s\r\n" % (len(event), event))
                    self.wfile.flush()
                    if "breaks" in self.path:
                        self.connection.shutdown(socket.SHUT_RDWR)
                        return
                    time.sleep(0.01)
            except OSError:
                behind.gone.set()

        def log_message(self, *_args: Any) -> None:
            """Nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        behind.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        yield behind
        server.shutdown()
        thread.join()


@contextmanager
def serving(app: Any, settings: Settings) -> Iterator[int]:
    """The port of a running application."""
    with listen(settings) as listening:
        port = listening.getsockname()[1]
        running = Running(app, Service(settings), listening)
        try:
            yield port
        finally:
            running.stop()
            assert running.ended(30)


@contextmanager
def proxy(url: str, key: str | None = None, **settings: Any) -> Iterator[int]:
    chosen = Settings(port=0, **settings)
    with serving(make_proxy(Upstream.parse(url, key), chosen), chosen) as port:
        yield port


def ask(port: int, path: str, method: str = "POST", body: bytes = b"{}", **headers: str) -> http.client.HTTPResponse:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    named = {"Connection": "close", **{name.replace("_", "-"): value for name, value in headers.items()}}
    connection.putrequest(method, path, skip_host="Host" in named, skip_accept_encoding=True)
    sent = b"" if method == "GET" else body
    for name, value in {**named, "Content-Length": str(len(sent))}.items():
        connection.putheader(name, value)
    connection.endheaders(sent)
    return connection.getresponse()


def test_requests_and_answers_pass_as_they_are() -> None:
    body = '{"prediction": {"type": "content", "content": "é"}}'.encode()
    with other_server() as behind, proxy(behind.url + "/v1/") as port:
        answer = ask(port, "/v1/chat/completions?a=%20b", body=body, Content_Type="application/json", X_Own="1")
        assert (answer.status, json.load(answer)) == (200, {"usage": {"accepted_prediction_tokens": 3}})
        assert (answer.headers["Retry-After"], answer.headers.get_all("X-Twice")) == ("7", ["a", "b"])
        method, path, headers, sent = behind.asked[0]
        assert (method, path, sent) == ("POST", "/v1/chat/completions?a=%20b", body)
        assert (headers["content-type"], headers["x-own"]) == ("application/json", "1")
        assert headers["host"] == behind.url.removeprefix("http://")
        assert headers["accept-encoding"] == "identity"
        assert ask(port, "/v1/full").status == 429
        assert ask(port, "/v1/models", "GET").status == 200
        assert behind.asked[-1][0] == "GET"
        assert ask(port, "/slots", "GET").status == 404
        assert len(behind.asked) == 3


def test_events_come_one_by_one_and_a_client_that_goes_ends_the_other_request() -> None:
    with other_server() as behind, proxy(behind.url) as port:
        answer = ask(port, "/v1/stream")
        assert answer.headers["Content-Type"] == "text/event-stream"
        assert [answer.readline() for _ in range(3)] == [b'data: {"n": 0}\n', b"\n", b'data: {"n": 1}\n']
        assert not behind.gone.is_set()
        answer.close()
        assert behind.gone.wait(15)


def test_an_upstream_that_is_down_is_one_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
    with proxy(url) as port:
        answer = ask(port, "/v1/chat/completions")
        error = json.load(answer)["error"]
        assert answer.status == 502
        assert f"the server at {url} cannot be reached" in error["message"]
        assert "\n" not in error["message"]
        with other_server() as behind, proxy(behind.url) as other:
            assert ask(other, "/v1/models", "GET").status == 200


def test_an_upstream_that_breaks_off_is_told() -> None:
    with other_server() as behind, proxy(behind.url) as port:
        events = ask(port, "/v1/breaks").read().split(b"\n\n")
        assert events[0] == b'data: {"n": 0}'
        assert "broke off" in json.loads(events[1].removeprefix(b"data: "))["error"]["message"]
        with pytest.raises((http.client.IncompleteRead, ConnectionError)) as cut:
            ask(port, "/v1/cut").read()
        assert b"data:" not in getattr(cut.value, "partial", b"")


def test_keys_do_not_mix_and_are_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with other_server() as behind:
        with proxy(behind.url, "up-secret", keys=("our-secret",)) as port:
            assert ask(port, "/v1/models", "GET").status == 401
            assert not behind.asked
            ask(port, "/v1/models", "GET", Authorization="Bearer our-secret", Cookie="c=1")
        with proxy(behind.url, keys=("our-secret",)) as port:
            ask(port, "/v1/models", "GET", Authorization="Bearer our-secret")
        with proxy(behind.url) as port:
            ask(port, "/v1/models", "GET", Authorization="Bearer theirs")
        assert [each[2].get("authorization") for each in behind.asked] == ["Bearer up-secret", None, "Bearer theirs"]
        assert "cookie" not in behind.asked[0][2]
    assert "secret" not in caplog.text
    assert "secret" not in repr(Upstream.parse("http://h", "up-secret"))


def test_a_page_of_another_name_is_refused_before() -> None:
    with other_server() as behind, proxy(behind.url) as port:
        assert ask(port, "/v1/models", "GET", Host="evil.example").status == 403
        assert not behind.asked


@pytest.mark.parametrize(
    "url", ["", "localhost:8000", "ftp://h", "http://", "http://h:99999", "http://h?x=1", "http://a b"]
)
def test_other_urls_are_refused(url: str) -> None:
    with pytest.raises(OptionError, match="not the URL of a server"):
        Upstream.parse(url)


def test_passwords_and_odd_keys_are_refused() -> None:
    with pytest.raises(OptionError, match="with a password") as error:
        Upstream.parse("http://me:hunter2@h")
    assert "hunter2" not in str(error.value)
    with pytest.raises(OptionError, match="printable ASCII") as error:
        Upstream.parse("http://h", "hunter2\n")
    assert "hunter2" not in str(error.value)


def test_our_own_server_behind_says_the_same(small_pair: dict[str, Path]) -> None:
    settings = Settings(port=0)
    body = json.dumps({"prompt": "I need a table", "max_tokens": 8, "temperature": 0, "prediction": None}).encode()
    with load(small_pair["target"], "none", fetch=False) as runtime:
        service = Service(settings)
        service.open([runtime], settings)
        with serving(make_app(service), settings) as port, proxy(f"http://127.0.0.1:{port}/v1") as ours:
            direct, passed = (json.load(ask(each, "/v1/completions", body=body)) for each in (port, ours))
            assert passed["choices"] == direct["choices"]
            assert passed["usage"]["completion_tokens"] == direct["usage"]["completion_tokens"] > 0
            assert ask(ours, "/health", "GET").status == 200
            assert ask(ours, "/v1/chat/completions", body=b"{").status == 400
        service.close()


def test_the_command_takes_no_model_beside_it(tmp_path: Path) -> None:
    assert "loads no model" in refused(run("serve", "x.gguf", "--upstream", "http://127.0.0.1:9"))
    assert "not the URL" in refused(run("serve", "--upstream", "9"))
    (tmp_path / "keys").write_text("a\nb\n")
    line = refused(run("serve", "--upstream", "http://127.0.0.1:9", "--upstream-key-file", tmp_path / "keys"))
    assert "has 2 keys" in line
