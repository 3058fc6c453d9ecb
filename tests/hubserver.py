"""A stand-in for a model hub on 127.0.0.1: the few requests that huggingface-hub makes, and faults on demand."""

from __future__ import annotations

import hashlib
import json
import re
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs

COMMIT = "0123456789abcdef0123456789abcdef01234567"
LARGE = 1000  #: files of more bytes are in LFS, as all weights are


@dataclass
class Fault:
    """What goes wrong: a status with headers, a cut after some bytes of a body, or a wrong body."""

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    #: Bytes of a body after which the connection is cut; used up, once each.
    cuts: list[int] = field(default_factory=list)
    body: bytes | None = None
    hang: bool = False
    ranges: bool = True  #: whether a part of a file can be asked for
    #: Bytes of a body after which nothing comes any more; used up, once each.
    stalls: list[int] = field(default_factory=list)


@dataclass
class StandIn:
    """Repositories by name, each of files by name; what was asked; and what goes wrong."""

    repos: dict[str, dict[str, bytes]]
    endpoint: str = ""
    asked: list[tuple[str, str, str]] = field(default_factory=list)  #: method, path, Range
    tokens: set[str] = field(default_factory=set)
    on_list: Fault = field(default_factory=Fault)
    on_file: Fault = field(default_factory=Fault)
    on_search: Fault = field(default_factory=Fault)
    #: Stated of every file in place of its digest and its name, and of the repository in place of its commit.
    digest: str | None = None
    names: dict[str, str] = field(default_factory=dict)
    commit: object = COMMIT

    @property
    def searches(self) -> int:
        return sum(path == "/api/models" for _, path, _ in self.asked)

    def gets(self, name: str) -> list[str]:
        """The Range of each GET of a file, "" for all of it."""
        return [asked for method, path, asked in self.asked if method == "GET" and path.endswith(f"/{name}")]


def oid(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


def etag(content: bytes) -> str:
    return _sha256(content) if len(content) > LARGE else oid(content)


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


class _Handler(BaseHTTPRequestHandler):
    hub: StandIn
    closing: threading.Event
    protocol_version = "HTTP/1.1"

    def log_message(self, *_arguments: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        self.hub.asked.append((self.command, path, self.headers.get("Range", "")))
        self.hub.tokens.add(self.headers.get("Authorization", ""))
        if found := re.fullmatch(r"/api/models/([^/]+/[^/]+)/revision/([^/]+)", path):
            self._answer(self.hub.on_list, self._listing(found[1]))
        elif path == "/api/models":
            self._answer(self.hub.on_search, self._found(parse_qs(self.path.partition("?")[2])))
        elif found := re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
            self._file(self.hub.repos[found[1]].get(found[3]))
        else:
            self._say(404, b"", {})

    def _found(self, asked: dict[str, list[str]]) -> bytes:
        """What a search answers: repositories with GGUF files whose names have the words, the latest added first."""
        words = asked["search"][0].lower().split()
        names = [
            repo
            for repo, held in reversed(self.hub.repos.items())
            if all(word in repo.lower() for word in words) and any(name.endswith(".gguf") for name in held)
        ]
        assert asked["filter"] == ["gguf"]
        assert asked["sort"] == ["downloads"]
        return json.dumps([{"id": name, "modelId": name} for name in names[: int(asked["limit"][0])]]).encode()

    def _listing(self, repo: str) -> bytes | None:
        if repo not in self.hub.repos:
            return None
        siblings = []
        for name, content in self.hub.repos[repo].items():
            sha256, blob = (self.hub.digest or of(content) for of in (_sha256, oid))
            lfs = {"sha256": sha256, "size": len(content), "pointerSize": 130}
            name = self.hub.names.get(name, name)  # noqa: PLW2901
            own: dict[str, object] = {"rfilename": name, "size": len(content), "blobId": blob}
            siblings.append({**own, "lfs": lfs} if len(content) > LARGE else own)
        return json.dumps({"id": repo, "modelId": repo, "sha": self.hub.commit, "siblings": siblings}).encode()

    def _answer(self, fault: Fault, body: bytes | None) -> None:
        if fault.hang:
            self.closing.wait(5)
            self.close_connection = True
        elif fault.status:
            self._say(fault.status, b"no", fault.headers)
        elif body is None:
            self._say(404, b"", {"X-Error-Code": "RepoNotFound"})
        else:
            self._say(200, fault.body if fault.body is not None else body, {})

    def _file(self, content: bytes | None) -> None:
        if content is None:
            self._say(404, b"", {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": COMMIT})
            return
        fault = self.hub.on_file
        digest = self.hub.digest or etag(content)
        commit = str(self.hub.commit)
        headers = {"ETag": f'"{digest}"', "X-Repo-Commit": commit, "X-Linked-Size": str(len(content))}
        if self.command == "GET" and (fault.status or fault.hang):
            self._answer(fault, None)
            return
        if self.command == "GET" and fault.body is not None:
            content = fault.body
        start = re.match(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if start and fault.ranges:
            first, last = int(start[1]), min(int(start[2] or len(content)), len(content) - 1)
            headers["Content-Range"] = f"bytes {first}-{last}/{len(content)}"
            self._say(206, content[first : last + 1], headers)
        else:
            self._say(200, content, headers)

    def _say(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "HEAD":
            return
        if "ETag" in headers and self.hub.on_file.cuts:
            self.wfile.write(body[: self.hub.on_file.cuts.pop(0)])
            self.wfile.flush()
            self.connection.shutdown(socket.SHUT_RDWR)
            self.close_connection = True
            return
        if "ETag" in headers and self.hub.on_file.stalls:
            self.wfile.write(body[: self.hub.on_file.stalls.pop(0)])
            self.wfile.flush()
            self.closing.wait(60)
            self.close_connection = True
            return
        self.wfile.write(body)


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that has read enough hangs up: nothing to tell."""


@contextmanager
def serving(repos: dict[str, dict[str, bytes]]) -> Iterator[StandIn]:
    hub = StandIn(repos)
    closing = threading.Event()

    handler = type("Handler", (_Handler,), {"hub": hub, "closing": closing})
    server = _Server(("127.0.0.1", 0), handler)
    hub.endpoint = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        closing.set()
        server.shutdown()
        server.server_close()
        thread.join()
