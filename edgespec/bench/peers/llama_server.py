"""llama.cpp's `llama-server`: plain decoding, a draft model, the model's own head, and its look-ups.

Used over HTTP, with streaming, the prompt cache and otherwise default options.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import shutil
import socket
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ...backends.head_header import head_in
from ...sampling import Sampling
from ..contender import AnswerRequest, Chunk, ContenderFailed, Done
from .completion import Completion
from .process import Process
from .setup import Absent, Setup

SERVER = "EDGESPEC_LLAMA_SERVER"  #: names the program
_DRAFTS = (3, 8, 16)  # 3 is the default, 16 was
_GUESSES = (1, 3)  # of a head
_CONFIGURATIONS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "llama-server": ("llama.cpp server, plain", ()),
    **{
        f"llama-server:draft-{most}": (
            f"llama.cpp server, draft model, {most} tokens",
            ("--spec-type", "draft-simple", "--spec-draft-n-max", str(most)),
        )
        for most in _DRAFTS
    },
    **{
        f"llama-server:mtp-{most}": (
            f"llama.cpp server, the model's head, at most {most}",
            ("--spec-type", "draft-mtp", "--spec-draft-n-max", str(most)),
        )
        for most in _GUESSES
    },
    **{
        f"llama-server:eagle3-{most}": (
            f"llama.cpp server, EAGLE-3, at most {most}",
            ("--spec-type", "draft-eagle3", "--spec-draft-n-max", str(most)),
        )
        for most in _GUESSES
    },
    "llama-server:ngram-simple": ("llama.cpp server, ngram-simple", ("--spec-type", "ngram-simple")),
    "llama-server:ngram-mod": ("llama.cpp server, ngram-mod", ("--spec-type", "ngram-mod")),
}
TITLES: Mapping[str, str] = {name: title for name, (title, _) in _CONFIGURATIONS.items()}
_WATCHDOG = Path(__file__).parent / "worker" / "watchdog.py"
_HOST = "127.0.0.1"
_HEALTH_TIMEOUT = 5.0  # seconds for a health request, which is repeated
_POLL = 0.05  # seconds between two health requests
_SEEDS = (1 << 32) - 1  # the largest means a random one


def start(name: str, setup: Setup) -> LlamaServer:
    """One of `TITLES`.

    Raises:
        ContenderFailed: it is missing, fails to start, or is not ready in time.
    """
    program = setup.server or os.environ.get(SERVER) or shutil.which("llama-server")
    if not program:
        raise Absent(f"llama-server is not on the PATH; install llama.cpp, or let {SERVER} name it")
    title, options = _CONFIGURATIONS[name]
    command = [str(program), *_options(name, setup), *options]
    return LlamaServer(name, title, command, setup.patience)


def _options(name: str, setup: Setup) -> list[str]:
    files = {"-m": setup.target}
    if ":draft" in name:
        if setup.draft is None:
            raise Absent(f"{name} wants a draft model, and there is none; give one")
        files["-md"] = setup.draft
    kind = next((kind for kind in ("mtp", "eagle3") if f":{kind}" in name), None)
    head = next((path for path in setup.heads if head_in(path) == kind), None)
    if kind is not None and head is not None:
        files["-md"] = head  # else it is in the target's file
    elif kind == "eagle3":
        raise Absent(f"{name} wants an EAGLE-3 head, and there is none; give one")
    for path in files.values():
        if not path.is_file():
            raise Absent(f"{name} runs GGUF files, and {path} is none; give one")
    threads = str(setup.threads)
    options = ["-t", threads, "-tb", threads, "-c", str(setup.context), "-np", "1", "--no-webui"]
    if setup.gpu_layers >= 0:  # else as many as it finds room for
        options += ["-ngl", str(setup.gpu_layers), "-ngld", str(setup.gpu_layers)]
    return [*(word for flag, path in files.items() for word in (flag, str(path))), *options]


class LlamaServer:
    """A server process on a free port.

    Raises:
        ContenderFailed: it died, or is not ready within `patience` seconds.
    """

    replays = False

    def __init__(self, name: str, title: str, command: list[str], patience: float) -> None:
        self.name = name
        self._patience = patience
        self._port = _free_port()
        kept = [sys.executable, "-I", str(_WATCHDOG), *command, "--host", _HOST, "--port", str(self._port)]
        self._process = Process(kept, name)
        try:
            with contextlib.suppress(ValueError):  # nothing was said where it could not be run
                self._process.pid = int(self._process.stdout.readline())
            self._wait()
            self.title = f"{title} ({self._build()})"
        except BaseException:
            self.close()
            raise

    def answer(self, ask: AnswerRequest) -> Iterator[Chunk | Done]:
        """Stream the answer; `Done` is last.

        Raises:
            ContenderFailed: it failed, refused the request, or did not respond in time.
        """
        if ask.replay is not None:
            raise ContenderFailed(f"{self.name} cannot be made to say a given text; leave it out of such suites")
        connection = http.client.HTTPConnection(_HOST, self._port, timeout=self._patience)
        try:
            connection.request("POST", "/completion", json.dumps(_asked(ask)), {"Content-Type": "application/json"})
            yield from Completion(connection.getresponse(), self._patience)
        except TimeoutError as error:
            raise ContenderFailed(f"{self.name} said nothing for {self._patience:g} seconds; give it more") from error
        except (EOFError, OSError, http.client.HTTPException) as error:
            raise ContenderFailed(f"{self.name}: {self._process.reason(_told(error))}") from error
        except (ValueError, KeyError) as error:
            raise ContenderFailed(f"{self.name}: {_told(error)}") from error
        finally:
            connection.close()

    def memory(self) -> int | None:
        """The peak memory of its process in bytes; None where not known."""
        return self._process.memory()

    def close(self) -> None:
        """End the server."""
        self._process.close()

    def _wait(self) -> None:
        deadline = time.monotonic() + self._patience
        while not self._healthy():
            if self._process.ended(within=_POLL):
                raise ContenderFailed(f"{self.name}: {self._process.reason('')}")
            if time.monotonic() > deadline:
                waited = f"{self.name} is not ready after {self._patience:g} seconds"
                raise ContenderFailed(f"{waited}; it said last: {self._process.last_words() or 'nothing'}")

    def _healthy(self) -> bool:
        with contextlib.suppress(OSError, http.client.HTTPException):
            return self._get("/health")[0] == http.client.OK
        return False

    def _build(self) -> str:
        with contextlib.suppress(OSError, http.client.HTTPException, ValueError, KeyError):
            return str(json.loads(self._get("/props")[1])["build_info"])
        return "unknown build"

    def _get(self, path: str) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection(_HOST, self._port, timeout=min(self._patience, _HEALTH_TIMEOUT))
        with contextlib.closing(connection):
            connection.request("GET", path)
            response = connection.getresponse()
            return response.status, response.read()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((_HOST, 0))
        port: int = probe.getsockname()[1]
        return port


def _asked(ask: AnswerRequest) -> dict[str, Any]:
    return {
        "prompt": list(ask.prompt),
        "n_predict": ask.max_tokens,
        "stream": True,
        "return_tokens": True,
        "cache_prompt": True,
        **_chosen(ask.sampling),
    }


def _chosen(sampling: Sampling) -> dict[str, Any]:
    """The sampling in the server's parameters, with the filters in edgespec's order; greedy sampling as top-k 1."""
    filters = ["top_k"] if sampling.greedy else ["temperature", "top_k", "top_p", "min_p"]
    return {
        "samplers": ["penalties", *filters],
        "temperature": sampling.temperature,
        "top_k": 1 if sampling.greedy else sampling.top_k,
        "top_p": sampling.top_p,
        "min_p": sampling.min_p,
        "repeat_penalty": sampling.repetition_penalty,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        "repeat_last_n": sampling.penalty_window,
        "logit_bias": [[token, False if bias == -float("inf") else bias] for token, bias in sampling.logit_bias],
        "seed": sampling.seed % _SEEDS,
    }


def _told(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
