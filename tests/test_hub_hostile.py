"""What a hostile hub states: digests, commits and names that are no paths, and listings that are malformed."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgespec.errors import HubError
from edgespec.models.hub import Hub
from edgespec.models.listing import file_named, gguf

from .hubfiles import FILES, MODEL, NAME, REPO, everything_in, links
from .hubserver import COMMIT, Fault, StandIn

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
