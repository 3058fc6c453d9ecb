"""What a hub answers: listings, heads of files, searches and files that are not as they should be."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from random import Random
from typing import Any
from unittest import mock

from huggingface_hub import constants

from edgespec.errors import HubError
from edgespec.library import quietly
from edgespec.models.hub import Hub
from edgespec.models.listing import checkpoint, gguf

from ... import hubserver
from ...hubserver import COMMIT, Fault, StandIn, serving
from .. import spoil
from ..judge import Wrong, held
from ..place import Place

REPO = "org/small-GGUF"
_NAME = "small-Q4_K_M.gguf"
_NAMES = (
    "../../../precious", "/precious", "..", ".", "", "a/../../../../precious.gguf", "C:\\precious.gguf", "x\0.gguf",
    "a" * 300 + ".gguf", "\x1b]0;title\x07.gguf", "a\nb-Q4_K_M.gguf", "\ud800-Q4_K_M.gguf", "CON.gguf",
    "x-Q4_K_M-00001-of-99999.gguf",
)  # fmt: skip
_DIGESTS: tuple[Any, ...] = (
    "../../../../precious", "/nowhere/precious", "", ".", "..", "x", "0" * 64, "0" * 40, "../" * 30 + "etc/passwd",
    "a" * 300, "\0", "\x1b[0m", "main", "../snapshots", "..\\..\\precious", "A" * 64, 5, None, [], "٣" * 64,
)  # fmt: skip


@contextmanager
def _hub(place: Place) -> Iterator[tuple[StandIn, Hub]]:
    """A stand-in with a small model, and its client; outside of the client's cache nothing may change."""
    content = place.models.gguf("qwen2").read_bytes()
    (place.folder / "precious").write_bytes(b"precious")
    (place.folder / "deep" / "precious").parent.mkdir()
    (place.folder / "deep" / "precious").write_bytes(b"precious")
    cache = place.folder / "deep" / "hub"
    before = held(place.folder)
    changes: dict[str, object] = {
        "HF_HUB_ETAG_TIMEOUT": 1, "HF_HUB_DOWNLOAD_TIMEOUT": 1, "DOWNLOAD_CHUNK_SIZE": 10_000, "HF_HUB_OFFLINE": False,
    }  # fmt: skip
    with ExitStack() as stack:
        stack.enter_context(quietly())
        for name, value in changes.items():
            stack.enter_context(mock.patch.object(constants, name, value))
        stack.enter_context(mock.patch.object(constants, "is_offline_mode", return_value=False))
        stack.enter_context(mock.patch("huggingface_hub.file_download.time.sleep"))
        files = {_NAME: content, "small-Q8_0.gguf": content * 2, "config.json": b"{}", "README.md": b"a card\n"}
        served = stack.enter_context(serving({REPO: files}))
        yield served, Hub(served.endpoint, cache)
    if any(
        path.read_bytes() != b"precious" for path in (place.folder / "precious", place.folder / "deep" / "precious")
    ):
        raise Wrong("outside", "a file outside of the cache was written")
    if new := [each for each in held(place.folder) - before if not each.startswith("deep/hub")]:
        raise Wrong("outside", f"{', '.join(sorted(new)[:5])} was written outside of the cache")


def _ask(place: Place, hub: Hub) -> None:
    """All that a hub is asked for; what is pulled has the content that the hub states."""
    place.attempt(lambda: hub.listing(REPO))
    place.attempt(lambda: hub.search("small", 5))
    place.attempt(lambda: hub.head(REPO, _NAME))
    for choose in (gguf(), checkpoint):
        pulled = place.attempt(lambda choose=choose: hub.pull(REPO, choose))  # type: ignore[misc]
        for path in pulled.paths if pulled is not None else ():
            if not path.is_file():
                raise Wrong("incomplete", f"{path.name} was pulled and is not there")
    place.attempt(lambda: hub.find(REPO, gguf()))
    place.attempt(lambda: list(hub.models()))


def _listing(served: StandIn) -> dict[str, Any]:
    siblings = []
    for name, content in served.repos[REPO].items():
        lfs = {"sha256": hubserver.etag(content), "size": len(content), "pointerSize": 130}
        own: dict[str, Any] = {"rfilename": name, "size": len(content), "blobId": hubserver.oid(content)}
        siblings.append({**own, "lfs": lfs} if len(content) > hubserver.LARGE else own)
    return {"id": REPO, "modelId": REPO, "sha": COMMIT, "siblings": siblings}


def _listed(change: Callable[[dict[str, Any]], object]) -> Callable[[Place], None]:
    """With another listing."""

    def run(place: Place) -> None:
        with _hub(place) as (served, hub):
            listing = _listing(served)
            change(listing)
            served.on_list.body = json.dumps(listing).encode("utf-8", "surrogatepass")
            _ask(place, hub)

    return run


def _digest(value: Any) -> Callable[[Place], None]:
    def change(listing: dict[str, Any]) -> None:
        for each in listing["siblings"]:
            each["blobId"] = value
            if "lfs" in each:
                each["lfs"]["sha256"] = value

    return _listed(change)


def _tagged(etag: str, commit: str = COMMIT) -> Callable[[Place], None]:
    """With another checksum and commit where a file is asked for."""

    def run(place: Place) -> None:
        with _hub(place) as (served, hub):
            served.on_list.body = json.dumps(_listing(served)).encode()
            with (
                mock.patch.object(hubserver, "etag", return_value=etag),
                mock.patch.object(hubserver, "COMMIT", commit),
            ):
                _ask(place, hub)

    return run


def _named(name: str) -> Callable[[Place], None]:
    def run(place: Place) -> None:
        with _hub(place) as (served, hub):
            files = served.repos[REPO]
            listing = _listing(served)
            listing["siblings"][0]["rfilename"] = name
            files[name] = files.pop(_NAME)
            served.on_list.body = json.dumps(listing).encode()
            _ask(place, hub)

    return run


def _sound(place: Place) -> None:
    """Nothing is wrong, and all is had: else no fault would be reached."""
    with _hub(place) as (served, hub):
        try:
            (pulled,) = hub.pull(REPO, gguf()).paths
            found = hub.search("small", 5)
            hub.head(REPO, _NAME)
        except HubError as error:
            raise Wrong("refused-sound", f"a sound hub is refused: {error}") from error
        if pulled.read_bytes() != served.repos[REPO][_NAME] or found != (REPO,):
            raise Wrong("incomplete", "a sound hub does not give what it has")
        if place.attempt(lambda: hub.listing("org/none")) is not None:
            raise Wrong("accepted", "a repository that is not there")


def _bracketed(place: Place) -> None:
    with _hub(place) as (served, hub):
        served.on_list.body = served.on_search.body = b"[" * 100_000
        _ask(place, hub)


CORPUS: Mapping[str, Callable[[Place], object]] = {
    "a sound hub": _sound,
    **{f"the digest {digest!r:.40}": _digest(digest) for digest in _DIGESTS},
    **{f"the name {name!r:.40}": _named(name) for name in _NAMES},
    **{f"the commit {commit!r:.40}": _listed(lambda listing, commit=commit: listing.update(sha=commit))  # type: ignore[misc]
       for commit in ("../../../precious", "/precious", "", "x", None, 5, ".", "refs/../..")},
    "a checksum that is a path": _tagged("../../../../precious"),
    "a commit that is a path": _tagged("0" * 64, "../../../precious"),
    "a negative size": _listed(lambda listing: listing["siblings"][0].update(size=-1)),
    "a size of 2^70": _listed(lambda listing: listing["siblings"][0].update(size=2**70)),
    "a size of 10^400": _listed(lambda listing: listing["siblings"][0].update(size=10**400)),
    "a size that is a text": _listed(lambda listing: listing["siblings"][0].update(size="x")),
    "no files": _listed(lambda listing: listing.update(siblings=[])),
    "files of None": _listed(lambda listing: listing.update(siblings=None)),
    "brackets in brackets": _bracketed,
}  # fmt: skip


def play(rng: Random, place: Place) -> None:
    """A hub with one fault or a few."""
    with _hub(place) as (served, hub):
        listing = _listing(served)
        served.on_list.body = json.dumps(listing).encode()
        notes = [rng.choice(_FAULTS)(rng, served, listing) for _ in range(rng.choice((1, 1, 2)))]
        place.note("; ".join(notes))
        _ask(place, hub)


def _json(rng: Random, served: StandIn, listing: dict[str, Any]) -> str:
    served.on_list.body = spoil.json_file(rng, listing)
    return f"listing {served.on_list.body!r:.300}"


def _sibling(rng: Random, served: StandIn, listing: dict[str, Any]) -> str:
    file = rng.choice(listing["siblings"])
    key = rng.choice(("rfilename", "size", "blobId", "lfs"))
    file[key] = rng.choice((spoil.value(rng), spoil.like(rng, file.get(key)), rng.choice(_NAMES), rng.choice(_DIGESTS)))
    served.on_list.body = spoil.written(rng, listing)
    return f"{key} is {file[key]!r:.100}"


def _status(rng: Random, served: StandIn, _listing: dict[str, Any]) -> str:
    status = rng.choice((400, 401, 403, 404, 416, 418, 429, 500, 503, 301, 304))
    texts = [text for text in spoil.TEXTS if text.isprintable() and text.isascii() and len(text) < 1000]
    names = ("X-Error-Code", "X-Error-Message", "Retry-After", "X-Repo-Commit", "Location")
    headers = {rng.choice(names): rng.choice((*texts, "GatedRepo", "EntryNotFound", "-5", "9" * 400))}
    fault = Fault(status, headers)
    name = rng.choice(("on_list", "on_file", "on_search"))
    setattr(served, name, fault)
    return f"{name} {status} {headers!r:.150}"


def _body(rng: Random, served: StandIn, listing: dict[str, Any]) -> str:
    content = served.repos[REPO][_NAME]
    found = json.dumps([{"id": spoil.value(rng)}, rng.choice(spoil.TEXTS)]).encode("utf-8", "surrogatepass")
    few = (b"", b"{}", b"[]", b"null", b"[" * 3000, b"<html>", b"\xff")
    bodies = (*few, content[:-1], content + b"x", spoil.data(rng, content), found)
    body, name = rng.choice(bodies), rng.choice(("on_list", "on_file", "on_search"))
    setattr(served, name, Fault(body=body))
    return f"{name} {body!r:.80}"


def _cut(rng: Random, served: StandIn, _listing: dict[str, Any]) -> str:
    served.on_file = Fault(
        cuts=[rng.randrange(130_000) for _ in range(rng.choice((1, 3, 30)))], ranges=rng.random() < 0.7
    )
    return f"cut at {served.on_file.cuts}"


def _content(rng: Random, served: StandIn, _listing: dict[str, Any]) -> str:
    """A file that is spoilt, with the right checksum."""
    files = served.repos[REPO]
    files[_NAME] = spoil.data(rng, files[_NAME][: rng.choice((20, 1000, 200_000))])
    served.on_list.body = None
    return f"a file of {len(files[_NAME])} bytes"


_FAULTS: tuple[Callable[[Random, StandIn, dict[str, Any]], str], ...] = (
    _json, _json, _sibling, _sibling, _status, _body, _cut, _content,
)  # fmt: skip
