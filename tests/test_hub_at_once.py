"""Several pulls of the same file at once, in threads and processes, of which one may be killed."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from edgespec.models.hub import Hub
from edgespec.models.listing import gguf

from .hubfiles import MODEL, NAME, REPO, leftovers
from .hubserver import StandIn, etag


def test_two_pulls_at_once_fetch_once(hub: Hub, stand_in: StandIn) -> None:
    results: list[bytes] = []

    def pull() -> None:
        results.append(hub.pull(REPO, gguf()).paths[0].read_bytes())

    threads = [threading.Thread(target=pull) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [MODEL] * 4
    assert stand_in.gets(NAME) == [""]
    assert leftovers(hub) == [etag(MODEL)]


def test_two_processes_at_once(hub: Hub, stand_in: StandIn) -> None:
    code = (
        "from edgespec.models.hub import Hub; from edgespec.models.listing import gguf; "
        f"print(Hub().pull({REPO!r}, gguf()).paths[0].stat().st_size)"
    )
    env = {**os.environ, "HF_ENDPOINT": stand_in.endpoint, "HF_HUB_CACHE": str(hub.cache), "HF_HUB_OFFLINE": "0"}
    running = [
        subprocess.Popen([sys.executable, "-I", "-c", code], env=env, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    assert [process.communicate(timeout=60)[0].strip() for process in running] == [str(len(MODEL))] * 2
    assert stand_in.gets(NAME) == [""]


def test_a_partial_file_that_another_process_completes_meanwhile(
    hub: Hub, stand_in: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has its final name between two looks at it."""
    part = hub.cache / "models--org--small-GGUF" / "blobs" / f"{etag(MODEL)}.edgespec-part"
    part.parent.mkdir(parents=True)
    part.write_bytes(MODEL[:1000])
    listing = hub.listing(REPO)
    wanted = [file for file in listing.files if file.name == NAME]
    assert hub.missing(listing, wanted) == len(MODEL) - 1000
    is_file = Path.is_file

    def completed(path: Path) -> bool:
        found = is_file(path)
        if path == part:
            path.unlink(missing_ok=True)
        return found

    monkeypatch.setattr(Path, "is_file", completed)
    part.write_bytes(MODEL[:1000])
    assert hub.missing(listing, wanted) >= len(MODEL) - 1000


PULLING = """
import sys
from huggingface_hub import constants
from edgespec.models.hub import Hub
from edgespec.models.listing import gguf
constants.DOWNLOAD_CHUNK_SIZE = 10_000

def tell(_name, done, total):
    if done >= total // 3 and sys.argv[1] == "tell":
        print("a third", flush=True)

print("begun", flush=True)
print(Hub().pull("org/small-GGUF", gguf(), on_progress=tell).paths[0], flush=True)
"""


def test_one_of_two_processes_is_killed_and_the_other_ends_right(hub: Hub, stand_in: StandIn) -> None:
    """Killed outright in the middle of the file, which the other waits for; that one goes on where the first ended."""
    env = {**os.environ, "HF_ENDPOINT": stand_in.endpoint, "HF_HUB_CACHE": str(hub.cache), "HF_HUB_OFFLINE": "0"}

    def pulling(mode: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-I", "-c", PULLING, mode]
        process = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        return process

    stand_in.on_file.stalls = [len(MODEL) // 2]
    with pulling("tell") as first:
        assert first.stdout is not None
        assert first.stdout.readline() == "a third\n"
        assert hub.find(REPO, gguf()) is None
        with pulling("quiet") as second:
            first.kill()
            said, _ = second.communicate(timeout=60)
    assert Path(said.strip()).read_bytes() == MODEL
    (whole, rest) = stand_in.gets(NAME)
    assert whole == ""
    assert len(MODEL) // 3 - 10_000 <= int(rest.removeprefix("bytes=").removesuffix("-")) <= len(MODEL) // 2
    assert leftovers(hub) == [etag(MODEL)]
