"""The image and the units of systemd: parsed, and their commands tried."""

from __future__ import annotations

import configparser
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from .commandline import EDGESPEC, run

ROOT = Path(__file__).parents[1]
UNITS = ("edgespec.service", "edgespec-worker.service")


def instructions() -> list[tuple[str, str]]:
    """The Dockerfile's instructions and their arguments."""
    text = (ROOT / "Dockerfile").read_text("utf-8")
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    joined = re.sub(r"\\\n", " ", "\n".join(lines))
    return [(word, rest.strip()) for word, _, rest in (line.partition(" ") for line in joined.splitlines() if line)]


def last_stage() -> dict[str, str]:
    found = instructions()
    start = max(i for i, (word, _) in enumerate(found) if word == "FROM")
    return dict(found[start:])


def test_the_image_has_stages_and_names_no_registry() -> None:
    bases = [rest for word, rest in instructions() if word == "FROM"]
    assert len(bases) == 2
    assert bases[0].endswith(" AS build")
    assert all("." not in base.partition(":")[0] and "/" not in base for base in bases)
    assert last_stage()["COPY"].startswith("--from=build ")
    assert not any(word == "ADD" or "://" in rest for word, rest in instructions() if word != "HEALTHCHECK")


def test_the_image_runs_as_a_user_over_a_volume_that_is_theirs() -> None:
    found, stage = instructions(), last_stage()
    words = [word for word, _ in found]
    assert stage["USER"] == "edgespec"
    assert "useradd --uid 1000 --create-home edgespec" in stage["RUN"]
    assert f"--owner edgespec --group edgespec {stage['VOLUME']}" in stage["RUN"]
    assert words.index("USER") < words.index("ENTRYPOINT")
    variables = dict(each.split("=", 1) for each in shlex.split(stage["ENV"]))
    for name in ("HF_HOME", "EDGESPEC_CACHE"):
        assert variables[name].startswith(f"{stage['VOLUME']}/")
    assert variables["EDGESPEC_PORT"] == stage["EXPOSE"] == "8080"


def test_the_image_starts_a_server_that_asks_for_a_key() -> None:
    """Its defaults without a key are refused by the command itself."""
    words = [*json.loads(last_stage()["ENTRYPOINT"]), *json.loads(last_stage()["CMD"])]
    assert words[:2] == ["edgespec", "serve"]
    done = run(*words[1:], env={"EDGESPEC_API_KEY": ""})
    assert done.returncode != 0
    assert "--api-key" in done.stderr


@pytest.mark.parametrize(("status", "healthy"), [(200, True), (503, False)])
def test_the_image_checks_its_health(status: int, healthy: bool) -> None:
    command = json.loads(last_stage()["HEALTHCHECK"].partition(" CMD ")[2])

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status if self.path == "/health" else 404)
            self.end_headers()

        def log_message(self, *_args: Any) -> None:
            """Nothing."""

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.handle_request)
        thread.start()
        assert command[0] == "python"
        environment = {**os.environ, "EDGESPEC_PORT": str(server.server_port)}
        done = subprocess.run([sys.executable, *command[1:]], env=environment, capture_output=True, check=False)
        thread.join()
    assert (done.returncode == 0) is healthy, done.stderr


def unit(name: str) -> configparser.ConfigParser:
    parsed = configparser.ConfigParser(strict=True, interpolation=None, delimiters=("=",))
    parsed.optionxform = str  # type: ignore[assignment, method-assign]
    parsed.read_string((ROOT / "contrib" / name).read_text("utf-8"))
    return parsed


@pytest.mark.parametrize("name", UNITS)
def test_a_unit_restarts_and_is_wanted(name: str) -> None:
    parsed = unit(name)
    assert parsed["Service"]["Restart"] in ("always", "on-failure")
    assert parsed["Service"]["NoNewPrivileges"] == "yes"
    assert parsed["Install"]["WantedBy"] == "default.target"
    words = shlex.split(parsed["Service"]["ExecStart"])
    assert words[0] == "%h/.local/bin/edgespec"
    known = run(words[1], "--help").stdout
    for word in words[2:]:
        assert not word.startswith("--") or word in known, f"{words[1]} has no {word}"


def test_the_worker_of_the_unit_listens_on_loopback() -> None:
    assert "--listen 127.0.0.1:" in unit("edgespec-worker.service")["Service"]["ExecStart"]


@pytest.mark.parametrize("name", UNITS)
def test_systemd_accepts_a_unit(name: str, tmp_path: Path) -> None:
    program = shutil.which("systemd-analyze")
    if program is None:
        pytest.skip("there is no systemd-analyze")
    text = (ROOT / "contrib" / name).read_text("utf-8").replace("%h/.local/bin/edgespec", EDGESPEC)
    (tmp_path / name).write_text(text)
    with tempfile.TemporaryDirectory(dir="/tmp") as runtime:  # sockets of other units: a path of up to 108 bytes
        done = subprocess.run(
            [program, "--user", "verify", str(tmp_path / name)],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "XDG_RUNTIME_DIR": runtime},
            timeout=60,
        )
    if "Failed to initialize manager" in done.stderr:
        pytest.skip(f"systemd-analyze does not run here: {done.stderr.strip()}")
    ours = [line for line in done.stderr.splitlines() if f"{name}:" in line]  # the system's units are not our matter
    assert (done.returncode, ours) == (0, [])
