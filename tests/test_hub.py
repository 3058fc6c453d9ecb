"""Pulling from a hub: over real HTTP, from a stand-in on 127.0.0.1."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import huggingface_hub.constants
import huggingface_hub.file_download
import numpy as np
import pytest

from edgespec.errors import HubError
from edgespec.models.hub import Hub
from edgespec.models.listing import checkpoint, file_named, gguf, split_name
from edgespec.models.partial_file import PartialFile

from .hubserver import COMMIT, Fault, StandIn, etag, serving

REPO = "org/small-GGUF"
MODEL = np.random.default_rng(3).bytes(300_000)
NAME = "small-Q4_K_M.gguf"
FILES = {NAME: MODEL, "small-Q8_0.gguf": MODEL * 2, "mmproj-Q4_K_M.gguf": MODEL[:5000], "README.md": b"a card\n"}


@pytest.fixture
def stand_in() -> Iterator[StandIn]:
    with serving({REPO: dict(FILES)}) as hub:
        yield hub


@pytest.fixture
def hub(stand_in: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hub:
    """The client of `stand_in`, impatient, with a cache of its own."""
    for name in ("HF_HUB_ETAG_TIMEOUT", "HF_HUB_DOWNLOAD_TIMEOUT"):
        monkeypatch.setattr(huggingface_hub.constants, name, 2)
    # It writes whole chunks only, so what is smaller is lost when the connection is.
    monkeypatch.setattr(huggingface_hub.constants, "DOWNLOAD_CHUNK_SIZE", 10_000)
    monkeypatch.setattr("huggingface_hub.file_download.time.sleep", lambda _seconds: None)
    return Hub(stand_in.endpoint, tmp_path / "hub")


def leftovers(hub: Hub) -> list[str]:
    """All files of the cache but links, locks and references."""
    files = (path for path in hub.cache.rglob("*") if path.is_file() and not path.is_symlink())
    return sorted(path.name for path in files if path.parent.name == "blobs")


def test_a_pull_is_whole_checked_and_pinned(hub: Hub, stand_in: StandIn) -> None:
    told: list[tuple[str, int, int]] = []
    pulled = hub.pull(REPO, gguf(), on_progress=lambda *seen: told.append(seen))
    (path,) = pulled.paths
    assert path.read_bytes() == MODEL
    assert path.name == NAME
    assert pulled.commit == COMMIT
    assert path.parent == pulled.folder
    assert leftovers(hub) == [hashlib.sha256(MODEL).hexdigest()], "only what was asked for"
    assert told[-1] == (NAME, len(MODEL), len(MODEL))
    assert [done for _, done, _ in told] == sorted(done for _, done, _ in told)
    assert (hub.cache / "models--org--small-GGUF" / "refs" / "main").read_text() == COMMIT
    assert stand_in.gets(NAME) == [""]
    assert hub.pull(REPO, gguf()) == pulled
    assert stand_in.gets(NAME) == [""], "it is here already"


def test_what_the_tools_of_the_hub_fetched_is_found_and_they_find_ours(hub: Hub, stand_in: StandIn) -> None:
    again: dict[str, Any] = {"endpoint": stand_in.endpoint, "cache_dir": hub.cache}
    theirs = huggingface_hub.file_download.hf_hub_download(REPO, "small-Q8_0.gguf", **again)
    assert hub.pull(REPO, gguf("q8_0")).paths == (Path(theirs),)
    ours = hub.pull(REPO, gguf()).paths[0]
    huggingface_hub.file_download.hf_hub_download(REPO, NAME, **again)
    assert (stand_in.gets("small-Q8_0.gguf"), stand_in.gets(NAME)) == ([""], [""])
    assert ours.is_file()


def test_an_interrupted_pull_goes_on_where_it_ended(hub: Hub, stand_in: StandIn) -> None:
    def interrupt(_name: str, done: int, total: int) -> None:
        if done >= total // 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        hub.pull(REPO, gguf(), on_progress=interrupt)
    assert hub.find(REPO, gguf()) is None, "half a file has no name"
    (part,) = leftovers(hub)
    half = (hub.cache / "models--org--small-GGUF" / "blobs" / part).stat().st_size
    assert 0 < half < len(MODEL)
    told: list[int] = []
    assert hub.pull(REPO, gguf(), on_progress=lambda _n, done, _t: told.append(done)).paths[0].read_bytes() == MODEL
    assert stand_in.gets(NAME) == ["", f"bytes={half}-"]
    assert half in told
    assert leftovers(hub) == [etag(MODEL)]


def test_a_cut_connection_is_taken_up_again_at_once(hub: Hub, stand_in: StandIn) -> None:
    stand_in.on_file.cuts = [70_000, 50_000]
    assert hub.pull(REPO, gguf()).paths[0].read_bytes() == MODEL
    first, *rest = stand_in.gets(NAME)
    assert first == ""
    assert rest == ["bytes=70000-", "bytes=120000-"]


def test_a_hub_that_cannot_send_parts_sends_all_again(hub: Hub, stand_in: StandIn) -> None:
    stand_in.on_file = Fault(cuts=[70_000], ranges=False)
    assert hub.pull(REPO, gguf()).paths[0].read_bytes() == MODEL
    assert stand_in.gets(NAME) == ["", "bytes=70000-"]


def test_a_connection_cut_for_good_says_so_and_keeps_what_came(hub: Hub, stand_in: StandIn) -> None:
    stand_in.on_file.cuts = [70_000] + [0] * 20
    with pytest.raises(HubError, match=r"was lost during .*try again: what was downloaded is kept"):
        hub.pull(REPO, gguf())
    assert hub.find(REPO, gguf()) is None
    stand_in.on_file.cuts = []
    hub.pull(REPO, gguf())
    assert stand_in.gets(NAME)[-1] == "bytes=70000-"


def test_a_spoilt_half_is_fetched_afresh(hub: Hub, stand_in: StandIn) -> None:
    part = hub.cache / "models--org--small-GGUF" / "blobs" / f"{etag(MODEL)}.edgespec-part"
    part.parent.mkdir(parents=True)
    part.write_bytes(b"x" * 1000)
    assert hub.pull(REPO, gguf()).paths[0].read_bytes() == MODEL
    assert stand_in.gets(NAME) == ["bytes=1000-", ""]
    part.write_bytes(b"x" * (len(MODEL) + 1))
    (hub.cache / "models--org--small-GGUF" / "blobs" / etag(MODEL)).unlink()
    assert hub.pull(REPO, gguf()).paths[0].read_bytes() == MODEL


@pytest.mark.parametrize("name", [NAME, "README.md"])
def test_a_wrong_checksum_is_discarded(hub: Hub, stand_in: StandIn, name: str) -> None:
    right = FILES[name]
    stand_in.on_file.body = bytes([right[0] ^ 1]) + right[1:]
    with pytest.raises(HubError, match=f"{name} of {REPO} has another checksum"):
        hub.pull(REPO, file_named(name))
    assert leftovers(hub) == []
    assert hub.find(REPO, file_named(name)) is None


@pytest.mark.parametrize("body", [MODEL[:-1], MODEL + b"x"])
def test_a_wrong_length_is_discarded(hub: Hub, stand_in: StandIn, body: bytes) -> None:
    stand_in.on_file.body = body
    with pytest.raises(HubError, match="has another length than the hub stated"):
        hub.pull(REPO, gguf())
    assert leftovers(hub) == []


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        (Fault(401, {"X-Error-Code": "GatedRepo"}), "is gated: accept its terms on its page at http.* HF_TOKEN"),
        (Fault(403, {"X-Error-Code": "GatedRepo"}), "is gated"),
        (Fault(401, {"X-Error-Code": "RepoNotFound"}), "is not at http.*private; check the name, or log in with"),
        (Fault(401, {"X-Error-Message": "Invalid credentials in Authorization header"}), "rejects the token"),
        (Fault(403), r"this token may not read org/small-GGUF at .* \(403\)"),
        (Fault(404, {"X-Error-Code": "RepoNotFound"}), "is not at http"),
        (Fault(404, {"X-Error-Code": "RevisionNotFound"}), "no such revision"),
        (Fault(429, {"Retry-After": "17"}), r"too many requests \(429\).*try again in 17 seconds"),
        (Fault(503), r"internal error \(503\).*try again later"),
        (Fault(500), r"internal error \(500\)"),
        (Fault(418), "answered 418"),
        (Fault(body=b"<html>log in to the hotel</html>"), "malformed response.*HF_ENDPOINT"),
    ],
)
def test_what_the_hub_refuses_is_one_line_and_a_way_out(hub: Hub, stand_in: StandIn, fault: Fault, says: str) -> None:
    stand_in.on_list = fault
    with pytest.raises(HubError, match=says) as raised:
        hub.pull(REPO, gguf())
    assert "\n" not in str(raised.value)


def test_a_file_that_is_refused_or_gone(hub: Hub, stand_in: StandIn) -> None:
    stand_in.on_file.status = 503
    with pytest.raises(HubError, match=r"internal error \(503\), so small-Q4_K_M.gguf of org/small-GGUF cannot"):
        hub.pull(REPO, gguf())
    with pytest.raises(HubError, match="has no file nothing"):
        hub.pull(REPO, file_named("nothing"))
    assert leftovers(hub) == []


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        (Fault(401, {"X-Error-Code": "GatedRepo"}), "is gated: accept its terms"),
        (Fault(401), r"rejects the token for .*\(401\)"),
        (Fault(403), r"this token may not read small-Q4_K_M.gguf of org/small-GGUF at .* \(403\)"),
        (Fault(404), "has no such file|answered 404"),
        (Fault(429, {"Retry-After": "0"}), r"too many requests \(429\)"),
        (Fault(500), r"internal error \(500\)"),
    ],
)
def test_what_is_refused_of_a_file(
    hub: Hub, stand_in: StandIn, monkeypatch: pytest.MonkeyPatch, fault: Fault, says: str
) -> None:
    monkeypatch.setattr("huggingface_hub.utils._http.time.sleep", lambda _seconds: None)
    stand_in.on_file = fault
    with pytest.raises(HubError, match=says) as raised:
        hub.pull(REPO, gguf())
    assert "\n" not in str(raised.value)
    assert leftovers(hub) == []
    assert hub.find(REPO, gguf()) is None


def test_a_hub_that_hangs_or_is_not_there(hub: Hub, stand_in: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_ETAG_TIMEOUT", 0.2)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_DOWNLOAD_TIMEOUT", 0.2)
    stand_in.on_list.hang = True
    with pytest.raises(HubError, match="did not respond in time"):
        hub.pull(REPO, gguf())
    stand_in.on_list.hang, stand_in.on_file.hang = False, True
    with pytest.raises(HubError, match="did not respond in time"):
        hub.pull(REPO, gguf())
    with pytest.raises(HubError, match="cannot be reached"):
        Hub("http://127.0.0.1:9", hub.cache).pull(REPO, gguf())


def test_no_room_is_told_before_anything_is_fetched(
    hub: Hub, stand_in: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: SimpleNamespace(free=len(MODEL)))
    with pytest.raises(HubError, match=r"the disk of .* has .* free"):
        hub.pull(REPO, gguf())
    assert stand_in.gets(NAME) == []


def test_a_disk_that_fills_up_meanwhile(hub: Hub, stand_in: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: Any, data: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(PartialFile, "write", full)
        with pytest.raises(HubError, match=r"the disk is full, so small-Q4_K_M.gguf of org/small-GGUF cannot be"):
            hub.pull(REPO, gguf())
    assert hub.pull(REPO, gguf()).paths[0].read_bytes() == MODEL


def test_a_cache_that_cannot_be_written(stand_in: StandIn, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(HubError, match="cannot be stored"):
        Hub(stand_in.endpoint, tmp_path / "file" / "cache").pull(REPO, gguf())


def test_offline_the_cache_answers_alone(hub: Hub, stand_in: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    pulled = hub.pull(REPO, gguf())
    asked = len(stand_in.asked)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    assert hub.pull(REPO, gguf()) == pulled
    assert hub.find(REPO, file_named(NAME)) == pulled
    with pytest.raises(HubError, match="is not in the cache, and HF_HUB_OFFLINE forbids"):
        hub.pull(REPO, gguf("q8_0"))
    assert hub.find("org/unknown", gguf()) is None
    assert len(stand_in.asked) == asked


def test_a_token_is_shown_to_the_hub(stand_in: StandIn, tmp_path: Path) -> None:
    Hub(stand_in.endpoint, tmp_path, "hf_secret").pull(REPO, gguf())
    assert stand_in.tokens == {"Bearer hf_secret"}


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


def test_a_checkpoint_is_what_convert_reads_and_no_more(hub: Hub, stand_in: StandIn) -> None:
    wanted = {
        "config.json": b"{}",
        "model-00001-of-00002.safetensors": MODEL[:2000],
        "model-00002-of-00002.safetensors": MODEL[2000:5000],
        "model.safetensors.index.json": b"{ }",
        "tokenizer.json": MODEL[:3000],
        "chat_template.jinja": b"{{ messages }}",
        "README.md": b"card",
    }
    other = {"pytorch_model.bin": MODEL, "consolidated.safetensors": MODEL, "onnx/model.onnx": MODEL, "a.png": b"."}
    stand_in.repos["org/model"] = {**other, **wanted}
    pulled = hub.pull("org/model", checkpoint)
    assert {path.relative_to(pulled.folder).as_posix(): path.read_bytes() for path in pulled.paths} == wanted
    stand_in.repos["org/bare"] = {"config.json": b"{}", "pytorch_model.bin": MODEL}
    with pytest.raises(HubError, match=r"org/bare is no checkpoint with config.json and model.safetensors"):
        hub.pull("org/bare", checkpoint)


def test_which_gguf_is_chosen(hub: Hub, stand_in: StandIn) -> None:
    def chosen(quantization: str, *names: str) -> list[str]:
        stand_in.repos["org/x"] = dict.fromkeys(names, b"x")
        return [file.name for file in gguf(quantization)(hub.listing("org/x"))]

    assert chosen("", "x-Q4_K_M.gguf", "x-Q4_K_S.gguf", "mmproj-x-Q4_K_M.gguf") == ["x-Q4_K_M.gguf"]
    assert chosen("", "x-UD-Q4_K_XL.gguf", "mtp-x.gguf", "x-mmproj-F16.gguf", "MTP/x-Q4_0.gguf", "dflash-q.gguf") == [
        "x-UD-Q4_K_XL.gguf"
    ], "heads and image projectors are no models"
    assert chosen("ud-q4_k_xl", "x-UD-Q4_K_XL.gguf", "mtp-x-UD-Q4_K_XL.gguf") == ["x-UD-Q4_K_XL.gguf"]
    assert chosen("", "Qwen3.6-27B-MTP-Q4_K_M.gguf") == ["Qwen3.6-27B-MTP-Q4_K_M.gguf"], "a model with a head"
    assert chosen("Q8_0", "x-q8_0.gguf", "x-q8_0_l.gguf") == ["x-q8_0.gguf"]
    assert chosen("", "only.gguf", "imatrix.gguf") == ["only.gguf"]
    parts = [f"x-q4_k_m-0000{n}-of-00002.gguf" for n in (1, 2)]
    assert chosen("q4_k_m", *parts) == parts
    assert chosen("", "UD/x-Q4_K_M.gguf", "UD/x-Q2_K.gguf") == ["UD/x-Q4_K_M.gguf"]
    with pytest.raises(HubError, match=r"lacks x-q4_k_m-00002-of-00002.gguf"):
        chosen("q4_k_m", parts[0])
    with pytest.raises(HubError, match=r"has no GGUF file of q6_k, but x-Q4_K_M.gguf"):
        chosen("q6_k", "x-Q4_K_M.gguf", "x-Q8_0.gguf")
    with pytest.raises(HubError, match="no GGUF file at all"):
        chosen("", "model.safetensors")


def test_names_of_repositories() -> None:
    assert split_name("org/name") == ("org/name", "")
    assert split_name("org/name-1.5:Q8_0") == ("org/name-1.5", "Q8_0")
    for other in ("name", "org/model.gguf", "a/b/c", "/org/name", "./name", "~/x", "org/", ""):
        assert split_name(other) is None


# --- what a hostile hub states

LONG = "a" * 300
CASES = [
    "../../../../outside",
    "../../outside",
    "{outside}",
    "C:outside",
    "..\\..\\outside",
    "nul",
    "x\0y",
    LONG,
    "0" * 39,
    "0" * 63 + "g",
    "A" * 64,
    "0" * 40 + "\n",
    "",
]


def everything_in(folder: Path) -> dict[str, bytes | None]:
    """All that lies below, and its content."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() if path.is_file() else None
        for path in folder.rglob("*")
        if ".locks" not in path.parts
    }


def links(monkeypatch: pytest.MonkeyPatch, *, allowed: bool) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_DISABLE_SYMLINKS", not allowed, raising=False)


@pytest.mark.parametrize("allowed", [True, False])
@pytest.mark.parametrize("text", CASES)
def test_a_digest_that_is_none_is_no_path(
    hub: Hub, stand_in: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, allowed: bool
) -> None:
    """A file outside the cache was overwritten; where there are no links, deleted."""
    links(monkeypatch, allowed=allowed)
    victims = [tmp_path / "outside", hub.cache / "outside"]
    hub.cache.mkdir()
    for victim in victims:
        victim.write_bytes(MODEL[: len(MODEL) // 2])
    before = everything_in(tmp_path)
    stand_in.digest = text.format(outside=tmp_path / "outside") or "."
    for name in (NAME, "README.md"):
        with pytest.raises(HubError, match="neither SHA-256 nor git's; check HF_ENDPOINT") as raised:
            hub.pull(REPO, file_named(name))
        assert str(raised.value).isprintable()
    assert everything_in(tmp_path) == before
    assert stand_in.gets(NAME) == []


@pytest.mark.parametrize("text", [*CASES, None, 7, COMMIT[:12], COMMIT + "/../../x", COMMIT.upper()])
def test_a_commit_that_is_none_is_no_path(hub: Hub, stand_in: StandIn, tmp_path: Path, text: object) -> None:
    stand_in.commit = text.format(outside=tmp_path / "outside") if isinstance(text, str) else text
    before = everything_in(tmp_path)
    with pytest.raises(HubError, match=r"sent a malformed response for org/small-GGUF .the commit") as raised:
        hub.pull(REPO, gguf())
    assert str(raised.value).isprintable()
    assert everything_in(tmp_path) == before


@pytest.mark.parametrize(
    "name",
    [
        "../outside-Q4_K_M.gguf",
        "x/../../outside-Q4_K_M.gguf",
        "/outside-Q4_K_M.gguf",
        "//outside-Q4_K_M.gguf",
        "./outside-Q4_K_M.gguf",
        "x//outside-Q4_K_M.gguf",
        "C:outside-Q4_K_M.gguf",
        "C:/outside-Q4_K_M.gguf",
        "..\\outside-Q4_K_M.gguf",
        "x\0-Q4_K_M.gguf",
        "\x1b]0;title\x07-Q4_K_M.gguf",
        "\u202e-Q4_K_M.gguf",
        "\ud800-Q4_K_M.gguf",
        "x/aux.Q4_K_M.gguf",
        "con/x-Q4_K_M.gguf",
        ".. /x-Q4_K_M.gguf",
        LONG + "-Q4_K_M.gguf",
        "x/" * 600 + "x-Q4_K_M.gguf",
        "é" * 150 + "-Q4_K_M.gguf",
    ],
)
def test_a_name_that_is_no_path_in_a_repository_is_not_there(
    hub: Hub, stand_in: StandIn, tmp_path: Path, name: str
) -> None:
    stand_in.names = {NAME: name}
    before = everything_in(tmp_path)
    assert sorted(file.name for file in hub.listing(REPO).files) == sorted(set(FILES) - {NAME})
    for choose in (gguf("q4_k_m"), file_named(name)):
        with pytest.raises(HubError, match="has no "):
            hub.pull(REPO, choose)
    assert everything_in(tmp_path).keys() - before.keys() <= {"hub"}


def test_names_that_are_odd_and_harmless_are_kept(hub: Hub, stand_in: StandIn) -> None:
    stand_in.repos[REPO] = {"sub/.hidden/größe 1+2-Q4_K_M.gguf": MODEL, "auxiliary.json": b"{}", "a..b": b"x"}
    for name, content in stand_in.repos[REPO].items():
        if name != "sub/.hidden/größe 1+2-Q4_K_M.gguf":
            assert hub.pull(REPO, file_named(name)).paths[0].read_bytes() == content
    assert {file.name for file in hub.listing(REPO).files} == set(stand_in.repos[REPO])


@pytest.mark.parametrize(
    "body",
    [
        b"[]",
        b"1",
        b"{}",
        b"[" * 100_000,
        b'{"id": "o/r", "sha": "%s", "siblings": [{}]}' % COMMIT.encode(),
        b'{"id": "o/r", "sha": "%s", "siblings": 5}' % COMMIT.encode(),
        b'{"id": "o/r", "sha": "%s", "siblings": [{"rfilename": "x", "size": "big"}]}' % COMMIT.encode(),
        b'{"id": "o/r", "sha": "%s", "siblings": [{"rfilename": "x", "size": -1}]}' % COMMIT.encode(),
        b'{"id": "o/r", "sha": "%s", "siblings": [{"rfilename": "x", "size": 1%s}]}' % (COMMIT.encode(), b"0" * 400),
        b'{"id": "o/r", "sha": "%s", "siblings": [{"rfilename": "x", "lfs": {"size": 1}}]}' % COMMIT.encode(),
        b'{"id": "o/r", "sha": "%s", "siblings": [{"rfilename": "x", "lfs": 5}]}' % COMMIT.encode(),
    ],
)
def test_a_listing_that_is_malformed_is_one_line(hub: Hub, stand_in: StandIn, body: bytes) -> None:
    stand_in.on_list = Fault(body=body)
    with pytest.raises(HubError, match="malformed response"):
        hub.pull(REPO, gguf())


@pytest.mark.parametrize("revision", ["../../x", "/x", "a\0b", "", ".", "x/../y"])
def test_a_revision_that_is_no_name_is_not_asked_for(hub: Hub, stand_in: StandIn, revision: str) -> None:
    with pytest.raises(HubError, match="is no branch, tag or commit"):
        hub.pull(REPO, gguf(), revision=revision)
    assert stand_in.asked == []


def test_where_links_are_not_allowed_the_content_has_the_name(
    hub: Hub, stand_in: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    links(monkeypatch, allowed=False)
    (path,) = hub.pull(REPO, gguf()).paths
    assert path.read_bytes() == MODEL
    assert not path.is_symlink()
    assert leftovers(hub) == []
    assert hub.pull(REPO, gguf()).paths == (path,)
    assert hub.find(REPO, gguf()) is not None
    assert stand_in.gets(NAME) == [""]
    assert [name for name in everything_in(hub.cache) if "edgespec-" in name] == []


def test_what_an_interrupted_pull_left_is_swept_after_a_month(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    blobs = hub.cache / "models--org--other" / "blobs"
    blobs.mkdir(parents=True)
    for name in ("a" * 64 + ".edgespec-part", "b" * 64):
        (blobs / name).write_bytes(b"x")
    now = time.time
    for days, left in ((29, 2), (31, 1)):
        monkeypatch.setattr(time, "time", lambda days=days: now() + days * 86400)
        hub.pull(REPO, gguf())
        assert len(list(blobs.iterdir())) == left
    assert (blobs / ("b" * 64)).exists()
