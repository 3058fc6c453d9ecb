"""An engine in another process, with its own threads and memory, and possibly another Python; it may crash.

`worker/protocol.py` says what is spoken.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import os
import queue
import sys
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...errors import ContextOverflow
from ...sampling import Sampling
from ..contender import AnswerRequest, Chunk, ContenderFailed, Done
from .process import Process
from .setup import Absent, Setup

_WORKER = Path(__file__).parent / "worker"


@dataclass(frozen=True, slots=True)
class PeerEngine:
    """The program of an engine.

    Args:
        name, title: of the contender.
        script: its file in `inside`, without the suffix.
        python: what runs that.
        given: what its `load` is given besides `threads`, `context` and `gpu_layers`; JSON.
        lacks: the fields of `Sampling` that it does not know.
    """

    name: str
    title: str
    script: str
    python: str
    given: Mapping[str, Any]
    lacks: tuple[str, ...]


class Child:
    """An engine that answers through pipes.

    Raises:
        ContenderFailed: it cannot be started, does not load its model, or takes too long.
    """

    replays = False

    def __init__(self, engine: PeerEngine, setup: Setup) -> None:
        self.name = engine.name
        self._engine = engine
        self._patience = setup.patience
        self._context = setup.context
        command = [engine.python, str(_WORKER / "protocol.py"), str(_WORKER / f"{engine.script}.py")]
        environment = {"OMP_NUM_THREADS": str(setup.threads), "HF_HUB_OFFLINE": "1", "PYTHONIOENCODING": "utf-8"}
        self._process = Process(command, engine.name, environment)
        self._heard: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        threading.Thread(target=self._listen, daemon=True).start()
        try:
            machine = {"threads": setup.threads, "context": setup.context, "gpu_layers": setup.gpu_layers}
            self._tell({**machine, **engine.given})
            self.title = f"{engine.title} ({self._unless_failed(self._hear())['ready']})"
        except BaseException:
            self.close()
            raise

    def answer(self, ask: AnswerRequest) -> Iterator[Chunk | Done]:
        """Stream the answer; `Done` is last.

        An answer that is not heard to its end ends the process; one that the engine gives up does not.

        Raises:
            ContenderFailed: it failed, did not respond in time, or does not support an option.
            ContextOverflow: the prompt does not fit.
        """
        self._refuse(ask)
        sampling = dataclasses.asdict(ask.sampling)
        del sampling["logit_bias"]
        ended = False
        try:
            self._tell({"prompt": list(ask.prompt), "max_tokens": ask.max_tokens, "sampling": sampling})
            while "tokens" in (message := self._hear()):
                tokens = tuple(message["tokens"])
                yield Chunk(message["text"], tokens, len(tokens))
            ended = True
            yield Done(self._unless_failed(message)["done"])
        finally:
            if not ended:  # the rest would be taken for the next answer
                self.close()

    def memory(self) -> int | None:
        """The peak memory of its process in bytes; None where not known."""
        return self._process.memory()

    def close(self) -> None:
        """End the process."""
        self._process.close()

    def _refuse(self, ask: AnswerRequest) -> None:
        if ask.replay is not None:
            raise ContenderFailed(f"{self.name} cannot be made to say a given text; leave it out of such suites")
        if len(ask.prompt) >= self._context:
            prompt, room = len(ask.prompt), self._context
            raise ContextOverflow(f"{self.name}: the prompt has {prompt} tokens, the context {room}; give it more")
        usual = Sampling()
        for field in self._engine.lacks:
            if getattr(ask.sampling, field) != getattr(usual, field):
                raise ContenderFailed(f"{self.name} knows no {field} like ours; leave out the one or the other")

    def _tell(self, message: Mapping[str, Any]) -> None:
        try:
            self._process.stdin.write(json.dumps(message).encode() + b"\n")
            self._process.stdin.flush()
        except (OSError, ValueError) as error:
            raise ContenderFailed(f"{self.name}: {self._process.reason('it is closed')}") from error

    def _hear(self) -> dict[str, Any]:
        try:
            line = self._heard.get(timeout=self._patience)
        except queue.Empty:
            raise ContenderFailed(f"{self.name} said nothing for {self._patience:g} seconds; give it more") from None
        if not line:
            raise ContenderFailed(f"{self.name}: {self._process.reason('it closed its output')}")
        try:
            message: dict[str, Any] = json.loads(line)
        except ValueError:
            raise ContenderFailed(f"{self.name} said {line[:80]!r}, which is no JSON; its Python prints that") from None
        return message

    def _unless_failed(self, message: dict[str, Any]) -> dict[str, Any]:
        if "failed" in message:
            raise ContenderFailed(f"{self.name}: {message['failed']}")
        return message

    def _listen(self) -> None:
        """Forward the output's lines, then an empty one, on a thread: not all systems read pipes with a timeout."""
        try:
            for line in self._process.stdout:
                self._heard.put(line)
        except ValueError:  # closed meanwhile
            pass
        finally:
            self._heard.put(b"")


def python_with(package: str, variable: str, setup: Setup) -> str:
    """The Python to run `package` in: that of the setup, or of the environment's `variable`, or this one.

    Raises:
        Absent: this one does not have it.
    """
    named = setup.python or os.environ.get(variable)
    if named:
        return str(named)
    if importlib.util.find_spec(package) is None:
        raise Absent(f"{package} is not installed; install it, or let {variable} name a Python that has it")
    return sys.executable
