"""What a hub has, seen before it is fetched, and drafts found there: over real HTTP, from a stand-in on 127.0.0.1."""

from __future__ import annotations

import io
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import gguf as gguf_package
import huggingface_hub.constants
import pytest

from edgespec.backends.gguf_header import Header, header, parsed
from edgespec.errors import HubError, ModelFileError
from edgespec.models import hub_search, model_source, model_summary, registry
from edgespec.models.hub import Hub
from edgespec.models.listing import Listing, RemoteFile, gguf
from edgespec.models.memory import MachineMemory
from edgespec.models.model_name import ModelName, parse_name
from edgespec.models.model_source import Source
from edgespec.models.partial_file import ChunkReader
from edgespec.models.sizes import size_of

from .hubserver import Fault, StandIn, serving
from .small_pair import SMALL_PAIR

TARGET = SMALL_PAIR.target.read_bytes()
DRAFT = SMALL_PAIR.drafts[0].read_bytes()
BIG = TARGET + bytes(10_000_000)  #: a draft has less than a tenth of it
REPO = "org/Talk-7B-Instruct-GGUF"
KIN = "org/Talk-0.5B-Instruct-GGUF"


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StandIn]:
    """A hub, ours by the environment, with an empty cache and an empty registry."""
    with serving({REPO: {"t-Q4_K_M.gguf": BIG}}) as hub:
        monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", hub.endpoint)
        url = hub.endpoint + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(huggingface_hub.constants, "HUGGINGFACE_CO_URL_TEMPLATE", url)
        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
        monkeypatch.setattr(hub_search, "entries", dict)
        monkeypatch.setattr("huggingface_hub.utils._http.time.sleep", lambda _seconds: None)
        yield hub


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A model of other tokens."""
    path = tmp_path_factory.mktemp("stranger") / "x.gguf"
    writer = gguf_package.GGUFWriter(path, "llama")
    writer.add_token_list(["a", "b", "c"])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path.read_bytes()


def target() -> Header:
    return header(SMALL_PAIR.target)


def drafted(name: str = REPO, size: int = len(BIG)) -> hub_search.DraftMatch | None:
    return hub_search.find_draft(name, target().vocabulary, size)


# --- names


@pytest.mark.parametrize(
    ("name", "is_"),
    [
        ("Qwen/Qwen2.5-7B-Instruct-GGUF", ModelName("qwen2.5", 7000, True)),
        ("bartowski/Qwen_Qwen3-32B-GGUF", ModelName("qwen3", 32000, False)),
        ("bartowski/Meta-Llama-3.1-8B-Instruct-GGUF", ModelName("llama-3.1", 8000, True)),
        ("ggml-org/gemma-3-270m-it-GGUF", ModelName("gemma-3", 270, True)),
        ("Mixtral-8x7B-Instruct-v0.1-Q4_K_M.gguf", ModelName("mixtral", 56000, True)),
        ("org/Qwen2.5-Coder-1.5B", ModelName("qwen2.5-coder", 1500, False)),
        ("org/Phi-4-mini-GGUF", None),
        ("org/7B", None),
    ],
)
def test_names_tell_family_and_size(name: str, is_: ModelName | None) -> None:
    assert parse_name(name) == is_


def test_who_may_draft_by_name() -> None:
    large = ModelName("qwen3", 8000, True)
    assert ModelName("qwen3", 600, False).may_draft_for(large)
    assert not ModelName("qwen3", 1700, False).may_draft_for(large)
    assert not ModelName("qwen2.5", 500, False).may_draft_for(large)


# --- heads


def test_a_head_is_read_from_afar(stand_in: StandIn) -> None:
    found = Hub().head(REPO, "t-Q4_K_M.gguf")
    assert found == target()
    assert stand_in.gets("t-Q4_K_M.gguf") == ["bytes=0-67108863"]
    stand_in.on_file.ranges = False
    assert Hub().head(REPO, "t-Q4_K_M.gguf") == found, "a hub that sends all is left when enough has come"


def test_pieces_are_read_like_a_file() -> None:
    content = DRAFT[:200_000]
    pieces = (content[i : i + 7001] for i in range(0, len(content), 7001))
    assert parsed(ChunkReader(pieces), "x") == parsed(io.BytesIO(content), "x")
    coming = ChunkReader(iter([b"ab", b"", b"cde"]))
    assert [coming.read(n) for n in (1, 3, 5, 1)] == [b"a", b"bcd", b"e", b""]


def test_a_head_that_is_not_to_be_had(stand_in: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in.repos["org/odd"] = {"text.gguf": b"no model" * 1000, "half.gguf": DRAFT[:50_000]}
    for name in ("text.gguf", "half.gguf"):
        with pytest.raises(ModelFileError, match=f"{name} of org/odd"):
            Hub().head("org/odd", name)
    with pytest.raises(HubError, match="no such file"):
        Hub().head(REPO, "none.gguf")
    stand_in.on_file.cuts = [60_000]
    with pytest.raises(HubError, match="was lost"):
        Hub().head(REPO, "t-Q4_K_M.gguf")
    asked = len(stand_in.asked)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(HubError, match="HF_HUB_OFFLINE"):
        Hub().head(REPO, "t-Q4_K_M.gguf")
    with pytest.raises(HubError, match="HF_HUB_OFFLINE"):
        Hub().search("talk", 9)
    assert len(stand_in.asked) == asked


# --- which file


@pytest.mark.parametrize(
    ("room", "chosen"),
    [
        (None, "x-Q4_K_M.gguf"),
        (100, "x-Q4_K_M.gguf"),
        (45, "x-Q4_K_M.gguf"),
        (44, "x-Q4_0.gguf"),
        (40, "x-Q4_0.gguf"),
        (39, "x-Q3_K_M-00001-of-00002.gguf"),
        (20, "x-Q2_K.gguf"),
    ],
)
def test_the_usual_quantization_or_the_largest_that_fits(room: int | None, chosen: str) -> None:
    sizes = {"x-F16": 150, "x-Q8_0": 80, "x-Q4_K_M": 45, "x-Q4_0": 40, "x-Q2_K": 20, "x-IQ1_S": 5}
    parts = {"x-Q3_K_M-00001-of-00002": 20, "x-Q3_K_M-00002-of-00002": 10}
    listing = Listing("o/x", "c", tuple(RemoteFile(f"{name}.gguf", size) for name, size in {**sizes, **parts}.items()))
    assert gguf(room=room)(listing)[0].name == chosen


def test_without_the_usual_the_largest_sensible_one_and_none_too_large() -> None:
    listing = Listing(
        "o/x", "c", (RemoteFile("x-F16.gguf", 160), RemoteFile("x-Q8_0.gguf", 80), RemoteFile("x-Q6_K.gguf", 60))
    )
    assert gguf()(listing)[0].name == "x-Q8_0.gguf"
    assert gguf(room=70)(listing)[0].name == "x-Q6_K.gguf"
    with pytest.raises(HubError, match=r"nothing of o/x fits into 0\.1 kB of memory: x-Q6_K.gguf has"):
        gguf(room=59)(listing)
    assert gguf("f16", room=1)(listing)[0].name == "x-F16.gguf", "what is named is honoured"
    odd = Listing("o/x", "c", (RemoteFile("x-TQ1.gguf", 9), RemoteFile("x-TQ2.gguf", 8)))
    assert gguf()(odd)[0].name == "x-TQ2.gguf"
    assert gguf(room=1)(Listing("o/x", "c", (RemoteFile("only.gguf", 9),)))[0].name == "only.gguf"


def test_what_is_seen_fits_into_memory(stand_in: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in.repos[REPO] = {"t-Q8_0.gguf": BIG * 2, "t-Q4_K_M.gguf": BIG, "t-Q3_K_M.gguf": TARGET}
    seen = hub_search.inspect(Source(REPO))
    assert (seen.source, seen.instead_of) == (Source(REPO, "t-Q4_K_M.gguf", "", len(BIG)), "")
    assert seen.head == target()
    assert seen.sizes.weights == len(BIG)
    assert seen.sizes.cache == 4 * 1024
    beside = (200 << 20) + len(BIG) // 10 + 2048 * 4 * 1024 + seen.sizes.computing(2048)
    monkeypatch.setattr(hub_search, "machine_memory", lambda: MachineMemory(beside + len(BIG)))
    assert hub_search.inspect(Source(REPO)).source.file == "t-Q4_K_M.gguf"
    monkeypatch.setattr(hub_search, "machine_memory", lambda: MachineMemory(beside + len(BIG) - 1))
    tight = hub_search.inspect(Source(REPO))
    assert (tight.source.file, tight.instead_of) == ("t-Q3_K_M.gguf", "t-Q4_K_M.gguf")
    assert tight.source.size == len(TARGET)
    assert hub_search.inspect(Source(REPO, quantization="q8_0")).source.file == "t-Q8_0.gguf"
    assert hub_search.inspect(Source(REPO, "t-Q4_K_M.gguf")).source.file == "t-Q4_K_M.gguf"
    with pytest.raises(HubError, match=r"nothing of .* fits"):
        hub_search.inspect(Source(REPO), 1 << 24)
    monkeypatch.setattr(hub_search, "machine_memory", lambda: MachineMemory(0))
    with pytest.raises(HubError, match=r"nothing of .* fits into 0"):
        hub_search.inspect(Source(REPO))


def test_a_file_whose_head_is_refused_is_known_by_its_size(stand_in: StandIn) -> None:
    stand_in.on_file.status = 403
    seen = hub_search.inspect(Source(REPO))
    assert (seen.head, seen.sizes.weights, seen.sizes.cache) == (None, len(BIG), None)


# --- drafts


def test_a_smaller_model_of_the_family_is_found_and_its_vocabulary_checked(stand_in: StandIn, stranger: bytes) -> None:
    stand_in.repos |= {
        "far/Talk-0.5B-GGUF": {"d-Q8_0.gguf": DRAFT},
        KIN: {"d-Q8_0.gguf": DRAFT * 2, "d-Q4_K_M.gguf": DRAFT},
        "org/Talk-0.3B-Instruct-GGUF": {"x-Q8_0.gguf": stranger},  # sooner, by name, but it speaks otherwise
        "org/Talk-3B-Instruct-GGUF": {"x-Q8_0.gguf": DRAFT},
        "org/Walk-0.5B-Instruct-GGUF": {"x-Q8_0.gguf": DRAFT},
        "org/Talk-0.1B-Instruct": {"model.safetensors": DRAFT},
    }
    found = drafted()
    assert found is not None
    assert found.source == Source(KIN, "d-Q4_K_M.gguf", "", len(DRAFT))
    assert found.why == "of the family talk, found on the hub"
    paths = [path for _, path, _ in stand_in.asked]
    assert not [path for path in paths if "Walk" in path or "-3B" in path]
    assert stand_in.searches == 1
    assert stand_in.gets("x-Q8_0.gguf"), "it was looked at"
    del stand_in.repos[KIN]
    again = drafted()
    assert again is not None
    assert again.source.repo == "far/Talk-0.5B-GGUF", "not tuned as the target is, but better than none"


def test_a_draft_of_more_than_a_tenth_is_none(stand_in: StandIn) -> None:
    stand_in.repos[KIN] = {"d-Q4_K_M.gguf": DRAFT}
    assert drafted(size=10 * len(DRAFT)) is not None
    assert drafted(size=10 * len(DRAFT) - 1) is None


def test_the_registrys_drafts_come_first(stand_in: StandIn, monkeypatch: pytest.MonkeyPatch, stranger: bytes) -> None:
    stand_in.repos |= {"a/Talk-0.6B-GGUF": {"a.gguf": DRAFT}, "b/other": {"b.gguf": stranger}, KIN: {"k.gguf": DRAFT}}

    def entry(vocabulary: str, file: registry.HubFile) -> registry.Entry:
        return registry.Entry("x", registry.HubFile("a/b", "c.gguf", 1), file, "", "", vocabulary, "", "")

    known = {
        "one": entry("tal", registry.HubFile("b/other", "b.gguf", len(stranger))),
        "two": entry("talk", registry.HubFile("a/Talk-0.6B-GGUF", "a.gguf", len(DRAFT))),
        "three": entry("walk", registry.HubFile("a/none", "a.gguf", 1)),
        "four": entry("talk", registry.HubFile("org/Talk-2B-Instruct", "a.gguf", len(BIG) // 10 + 1)),
    }
    monkeypatch.setattr(hub_search, "entries", lambda: known)
    found = drafted()
    assert found is not None
    assert found.source == Source("a/Talk-0.6B-GGUF", "a.gguf", "", len(DRAFT))
    assert found.why == "the registry's draft for talk"
    assert stand_in.searches == 0
    assert not [path for _, path, _ in stand_in.asked if "a/none" in path or "-2B" in path]


def test_requests_are_few(stand_in: StandIn, stranger: bytes) -> None:
    stand_in.repos |= {f"o{i}/Talk-0.{1 + i % 8}B-GGUF": {"x-Q4_0.gguf": stranger} for i in range(30)}
    assert drafted() is None
    assert stand_in.searches == 1
    assert len(stand_in.gets("x-Q4_0.gguf")) == 3
    assert len([path for _, path, _ in stand_in.asked if path.startswith("/api/models/")]) == 3
    before = len(stand_in.asked)
    assert drafted("org/no-size") is None
    assert len(stand_in.asked) == before, "a name that tells no family is not searched for"


def test_a_search_that_fails_is_told(stand_in: StandIn) -> None:
    stand_in.on_search = Fault(503)
    with pytest.raises(HubError, match=r"internal error \(503\), so a search for talk cannot"):
        drafted()
    assert stand_in.searches == 1, "not again and again"
    for body in (b"<html>", b'{"error": 1}', b"[1]"):
        stand_in.on_search = Fault(body=body)
        with pytest.raises(HubError, match="malformed response"):
            drafted()


def test_a_draft_in_the_cache_is_found_before_the_hub_is_asked(stand_in: StandIn, tmp_path: Path) -> None:
    stand_in.repos[KIN] = {"d-Q4_K_M.gguf": DRAFT}
    tokens = target().vocabulary
    assert model_source.cached_draft(tokens, len(DRAFT)) is None
    pulled = Source(KIN).pull().paths[0]
    assert model_source.cached_draft(tokens, len(DRAFT)) == pulled
    assert model_source.cached_draft(tokens, len(DRAFT) - 1) is None
    assert list(Hub().models()) == [(KIN, pulled)]
    local = tmp_path / "big.gguf"
    local.write_bytes(BIG)
    assert model_source.local_draft(local) == pulled


def test_half_a_file_is_no_model(stand_in: StandIn) -> None:
    """What is still coming, or came and was left, has no name that anything looks for."""

    def stop(_name: str, done: int, _total: int) -> None:
        if done > len(BIG) // 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Source(REPO).pull(stop)
    assert [path.name for path in Hub().cache.rglob("*.edgespec-part")]
    assert Source(REPO).here() is None
    assert list(Hub().models()) == []
    assert model_source.cached_draft(target().vocabulary, 10**12) is None
    assert model_summary.of_source(Source(REPO)).path is None


# --- facts


def test_facts_are_the_same_here_and_there(stand_in: StandIn) -> None:
    there = model_summary.of_source(Source(REPO))
    assert (there.path, there.size, there.name) == (None, len(BIG), f"{REPO} t-Q4_K_M.gguf")
    pulled = Source(REPO).pull().paths[0]
    here = model_summary.of_source(Source(REPO))
    assert (here.path, here.size) == (pulled, len(BIG))
    assert (here.sizes, here.tokens, here.template) == (there.sizes, there.tokens, there.template)
    assert here.template
    known = model_summary.of_source(Source("org/registered", "x.gguf", "", 123))
    assert (known.size, known.sizes.weights, known.sizes.cache, known.tokens) == (123, 123, None, None)
    with pytest.raises(HubError, match="is not at"):
        model_summary.of_source(Source("org/unknown"))


def test_a_draft_of_an_onnx_model_is_a_folder_beside_it(
    stand_in: StandIn, onnx_folders: Callable[[str], Path], tmp_path: Path
) -> None:
    big, small = tmp_path / "big", tmp_path / "small"
    shutil.copytree(onnx_folders("fp32"), big)
    shutil.copytree(onnx_folders("int4"), small)
    (tmp_path / "empty").mkdir()
    assert model_source.local_draft(big) is None, "more than a tenth"
    with (big / "README.md").open("wb") as file:
        file.truncate(10 * size_of(small))
    assert model_source.local_draft(big) == small
    assert model_summary.of_path(big).path == big
    assert model_summary.of_path(big).tokens is not None
