"""Pulling from a hub: over real HTTP, from a stand-in on 127.0.0.1."""

from __future__ import annotations

import hashlib
import time
from pathlib import Path
from typing import Any

import huggingface_hub.constants
import huggingface_hub.file_download
import pytest

from edgespec.errors import HubError
from edgespec.models.hub import Hub
from edgespec.models.listing import checkpoint, file_named, gguf, split_name

from .hubfiles import FILES, MODEL, NAME, REPO, everything_in, leftovers, links
from .hubserver import COMMIT, Fault, StandIn, etag


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
    pickled = {"config.json": b"{}", "pytorch_model.bin": MODEL}
    stand_in.repos["org/pickled"] = {**pickled, "training_args.bin": MODEL, "optimizer.pt": MODEL}
    assert {path.name for path in hub.pull("org/pickled", checkpoint).paths} == set(pickled)
    stand_in.repos["org/bare"] = {"config.json": b"{}", "training_args.bin": MODEL}
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
