"""Workers of llama.cpp's RPC on this machine, for tests."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from edgespec.backends import llama_rpc
from edgespec.backends.endpoint import Endpoint
from edgespec.errors import EdgespecError, EngineError, MissingPackage, OptionError
from edgespec.tools import build_rpc

SOURCE = "EDGESPEC_LLAMACPP"
_PATIENCE = 60.0  # seconds until a worker listens


def require_rpc() -> None:
    """Skip where there is no RPC; build it where the sources are given."""
    try:
        llama_rpc.library()
    except MissingPackage:
        source = os.environ.get(SOURCE)
        if not source:
            pytest.skip(f"{SOURCE} names no source of llama-cpp-python or llama.cpp to build RPC from")
        try:
            build_rpc.build(Path(source))
        except (OptionError, EngineError) as error:
            pytest.skip(f"no RPC can be built from {SOURCE}: {error}")


def free_endpoint() -> str:
    with socket.socket() as trial:
        trial.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{trial.getsockname()[1]}"


@contextmanager
def worker(endpoint: str, *options: str) -> Iterator[subprocess.Popen[bytes]]:
    """`edgespec worker`, listening."""
    command = [sys.executable, "-m", "edgespec", "worker", "--listen", endpoint, "--threads", "1", *options]
    running = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + _PATIENCE
        while not _listens(endpoint):
            assert running.poll() is None, "the worker has ended"
            assert time.monotonic() < deadline, "the worker does not listen"
            time.sleep(0.05)
        yield running
    finally:
        running.kill()
        running.wait()


def _listens(endpoint: str) -> bool:
    try:
        Endpoint.parse(endpoint).greet()
    except EdgespecError:
        return False
    return True
