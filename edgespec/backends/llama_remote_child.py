"""The process that loads a model over workers and computes for the one that started it.

It is ended where its standard input is: it never outlives its parent. llama.cpp ends it if a worker is lost.
"""

from __future__ import annotations

import logging
import os
import queue
import sys
import threading
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from ..errors import EdgespecError
from . import Device, Interrupt, Model, Session, common_prefix, open_model
from .endpoint import Endpoint
from .llama_remote_protocol import Said, receive, send
from .llama_rpc import attach


class Requests:
    """The parent's requests, of which one may be stopped while it is served or before."""

    def __init__(self, pipe: BinaryIO) -> None:
        self.interrupt = Interrupt()
        self._pipe = pipe
        self._lock = threading.Lock()
        self._waiting: queue.SimpleQueue[Said] = queue.SimpleQueue()
        self._served = self._stopped = -1

    def listen(self) -> None:
        """Read requests until the parent is gone, and then end the process, in the middle of a pass."""
        try:
            while (found := receive(self._pipe)) is not None:
                said, _ = found
                if said["do"] == "stop":
                    self._stop(said["number"])
                else:
                    self._waiting.put(said)
        finally:
            os._exit(0)

    def next(self) -> Said:
        """The next request, for which the interrupt is clear unless it was stopped already."""
        said = self._waiting.get()
        with self._lock:
            self._served = said["number"]
            self.interrupt.clear()
            if self._stopped == self._served:
                self.interrupt.set()
        return said

    def _stop(self, number: int) -> None:
        with self._lock:
            self._stopped = number
            if self._served == number:
                self.interrupt.set()


class Server:
    """A model, and its sessions by number."""

    def __init__(self, interrupt: Interrupt) -> None:
        self._interrupt = interrupt
        self._model: Model | None = None
        self._sessions: dict[int, Session] = {}
        self._told: dict[int, list[int]] = {}  # the tokens of each session, as the parent knows them

    def serve(self, said: Said) -> tuple[Said, memoryview | bytes]:
        """The answer to a request, and the logits where it asks for some."""
        what = said["do"]
        if what == "load":
            return self._load(said), b""
        if what == "open":
            return self._open(said), b""
        number = said["session"]
        session = self._sessions[number]
        if what == "close":
            session.close()
            del self._sessions[number], self._told[number]
            return {}, b""
        rows: memoryview | bytes = b""
        error = None
        try:
            if what == "prefill":
                session.prefill(said["tokens"])
            elif what == "rollback":
                session.rollback(said["length"], said["keep"])
            else:
                rows = np.ascontiguousarray(session.decode(said["tokens"], said["tree"])).data.cast("B")
        except EdgespecError as raised:
            error = raised
        return {**self._state(number), **(_failure(error) if error else {})}, rows

    def _load(self, said: Said) -> Said:
        attach([Endpoint.parse(each) for each in said["rpc"]])
        self._model = model = open_model(Path(said["path"]), Device(**said["device"]), self._interrupt)
        return {
            "trained_context": model.trained_context,
            "description": model.description,
            "sampling": model.sampling,
            "weights": model.weights,
            "notices": list(model.notices),
        }

    def _open(self, said: Said) -> Said:
        assert self._model is not None  # noqa: S101 - the parent loads first
        session = self._model.session(said["context"], self._interrupt)
        number = 1 + max(self._told, default=0)
        self._sessions[number], self._told[number] = session, []
        names = ("vocab", "context", "reach", "replays", "settling", "can_tree", "leaves", "widest", "identity")
        return {"session": number, **{name: getattr(session, name) for name in names}}

    def _state(self, number: int) -> Said:
        """What changed in the tokens of a session since the last answer."""
        session, told = self._sessions[number], self._told[number]
        held = list(session.tokens)
        same = common_prefix(told, held)
        self._told[number] = held
        return {"same": same, "rest": held[same:], "owed": session.owed}


def _failure(error: EdgespecError) -> Said:
    return {"error": type(error).__name__, "message": str(error)}


def main() -> None:
    """Serve the parent at standard input and output. What llama.cpp prints goes to standard error."""
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    log: Any = logging.getLogger("edgespec.llama")
    log.setLevel(logging.DEBUG)
    log.addHandler(logging.StreamHandler(sys.stderr))
    requests = Requests(sys.stdin.buffer)
    threading.Thread(target=requests.listen, daemon=True).start()
    server = Server(requests.interrupt)
    while True:
        said = requests.next()
        rows: memoryview | bytes = b""
        try:
            answer, rows = server.serve(said)
        except EdgespecError as error:
            answer = _failure(error)
        send(out, {"number": said["number"], **answer}, rows)


if __name__ == "__main__":
    main()
