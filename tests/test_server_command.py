"""`edgespec serve` as a process."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from .commandline import EDGESPEC, PROMPT, refused, run, unix


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def served(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The process of a server of the demo pair, which is loaded, and its URL."""
    port = free_port()
    command = [EDGESPEC, "serve", "--port", str(port), *arguments]
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True) as process:
        url = f"http://127.0.0.1:{port}"
        try:
            end = time.monotonic() + 120
            while not healthy(url):
                assert process.poll() is None, process.stderr and process.stderr.read()
                assert time.monotonic() < end, "it does not load"
                time.sleep(0.1)
            yield process, url
        finally:
            process.kill()


def healthy(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health", timeout=30).status_code == 200
    except httpx.TransportError:
        return False


@unix
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_in_the_middle_of_an_answer(number: int) -> None:
    with served("--slots", "2", "--seed", "3") as (process, url):
        answer = httpx.post(f"{url}/v1/chat/completions", json={"messages": [{"role": "user", "content": PROMPT}]})
        assert answer.json()["choices"][0]["finish_reason"] == "stop"
        assert answer.json()["model"] == "demo"
        asked = {"prompt": "a", "stream": True, "max_tokens": 2000, "logit_bias": {"2": -100}, "n": 8}
        with httpx.stream("POST", f"{url}/v1/completions", json=asked, timeout=60) as response:
            lines = response.iter_lines()
            next(lines)
            process.send_signal(number)
            rest = [line for line in lines if line]
        assert "error" in rest[-1] or rest[-1] == "data: [DONE]"
        assert process.wait(20) == 0
        assert process.stderr is not None
        said = process.stderr.read()
        assert "Traceback" not in said
        assert f"{url}/v1" in said
        assert "2 slots" in said


def test_wrong_options_are_refused_before_anything_is_loaded(tmp_path: Path) -> None:
    assert "--api-key" in refused(run("serve", "--host", "0.0.0.0", "--port", "0"))  # noqa: S104
    assert "port" in refused(run("serve", "--port", "70000"))
    assert "slots" in refused(run("serve", "--slots", "0"))
    assert "keys" in refused(run("serve", "--api-key-file", tmp_path / "none"))
    (tmp_path / "empty").write_text("# none\n")
    assert "no key" in refused(run("serve", "--api-key-file", tmp_path / "empty"))
    assert "cannot listen" in refused(run("serve", "--host", "192.0.2.1", "--api-key", "k", "--port", "0"))


def test_a_port_in_use_is_one_line() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        assert "cannot listen" in refused(run("serve", "--port", str(other.getsockname()[1])))


def test_a_model_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    assert "none.gguf" in refused(run("serve", tmp_path / "none.gguf", "--port", "0"))


def test_keys_of_a_file_and_of_the_environment(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("# for the desktop\nfirst\n\nsecond \n")
    os.environ["EDGESPEC_API_KEY"] = "third"
    try:
        with served("--api-key-file", str(keys)) as (_, url):
            for key, status in (("first", 200), ("second", 200), ("third", 200), ("fourth", 401)):
                found = httpx.get(f"{url}/v1/models", headers={"Authorization": f"Bearer {key}"})
                assert found.status_code == status
    finally:
        del os.environ["EDGESPEC_API_KEY"]


def test_help_has_examples() -> None:
    done = run("serve", "--help")
    assert done.returncode == 0
    assert "edgespec serve qwen3-8b --slots 4" in done.stdout
    assert "curl" in done.stdout
