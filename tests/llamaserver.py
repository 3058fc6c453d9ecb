"""A stand-in for llama.cpp's `llama-server`: tests copy it to where a program is looked for.

The text of the "model" says what goes wrong. What it was started with and asked lies beside that, as JSON.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

ENDS = 2
TIMINGS = {"prompt_n": 4, "prompt_ms": 80.0}
#: Tokens 7 and 8 share a character: only the second is told.
CHUNKS = [(5, " a", 1), (6, "", 2), (8, " é", 4), (9, ".", 5), (ENDS, "", 6)]


def option(name: str) -> str:
    return sys.argv[sys.argv.index(name) + 1]


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    model: Path
    fault: str

    def do_GET(self) -> None:
        """/health, and what else there is to know."""
        told = {"/health": {"status": "ok"}, "/props": {"build_info": "b7-stand-in"}}[self.path]
        self._send(503 if self.fault == "never ready" else 200, told)

    def do_POST(self) -> None:
        """/completion."""
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.model.with_suffix(".asked").write_text(json.dumps(asked), encoding="utf-8")
        if self.fault == "refuses":
            self._send(400, {"error": {"code": 400, "message": "the prompt is too long"}})
            return
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for event in self._events(asked):
            self._chunk(b": alive\n\n")
            self._chunk(b"data: " + json.dumps(event).encode() + b"\n\n")
        self._chunk(b"")

    def _events(self, asked: dict[str, Any]) -> Iterator[dict[str, Any]]:
        limited = asked["n_predict"] < len(CHUNKS)
        for i, (token, text, total) in enumerate(CHUNKS[: asked["n_predict"]]):
            yield {"content": text, "tokens": [token], "stop": False, "tokens_predicted": total}
            if i == 1 and self.fault:
                self._fail()
                yield {"error": {"code": 500, "message": "no room left"}}
        stop = {"stop": True, "content": "", "tokens": [], "stop_type": "limit" if limited else "eos"}
        yield {**stop, "tokens_predicted": total, "timings": TIMINGS}

    def _fail(self) -> None:
        if self.fault == "dies":
            sys.stderr.write("loading\n\nterminate called:\n  bad alloc\n")
            sys.stderr.flush()
            os._exit(3)
        while self.fault == "hangs":  # with signs of life, as a server sends whose engine hangs
            threading.Event().wait(0.05)
            self._chunk(b": alive\n\n")

    def _chunk(self, body: bytes) -> None:
        self.wfile.write(b"%x\r\n%s\r\n" % (len(body), body))
        self.wfile.flush()

    def _send(self, status: int, told: dict[str, Any]) -> None:
        body = json.dumps(told).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def main() -> None:
    Handler.model = Path(option("-m"))
    Handler.fault = Handler.model.read_text("utf-8")
    started = {"options": sys.argv[1:], "environment": sorted(os.environ), "group": os.getpgrp(), "id": os.getpid()}
    Handler.model.with_suffix(".started").write_text(json.dumps(started), encoding="utf-8")
    if Handler.fault == "exits":
        sys.exit("0.00.001 I loading\n0.00.002 E no such model\n0.00.003 I cleaning up")
    with ThreadingHTTPServer((option("--host"), int(option("--port"))), Handler) as server:
        server.serve_forever()


if __name__ == "__main__":
    main()
