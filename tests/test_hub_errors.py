"""Pulling from a hub that refuses, fails or is not there, and onto a disk that is full."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import huggingface_hub.constants
import pytest

from edgespec.errors import HubError
from edgespec.models.hub import Hub
from edgespec.models.listing import file_named, gguf
from edgespec.models.partial_file import PartialFile

from .hubfiles import MODEL, NAME, REPO, leftovers
from .hubserver import Fault, StandIn


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
