"""Names of models: the registry, what they stand for, and the commands, against a stand-in hub."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import huggingface_hub.constants
import pytest

from edgespec.backends import head_header
from edgespec.backends.recurrent_state import Copies
from edgespec.errors import OptionError
from edgespec.models import listing, model_source, registry

from . import checkpoints
from .hubserver import COMMIT, Fault, StandIn, etag, serving
from .small_pair import SMALL_PAIR

EDGESPEC = str(Path(sys.executable).parent / "edgespec")
_TARGET = "[a]\ntarget = { repo = 'o/n', file = 'x.gguf', size = 1 }\n"
PAIR = """
[tiny]
target = { repo = "org/tiny-GGUF", file = "tiny-Q8_0.gguf", size = 17000000 }
draft = { repo = "org/tinier-GGUF", file = "tinier-Q8_0.gguf", size = 2600000 }
licence = "mit"
"""


@pytest.fixture(scope="module")
def stand_in() -> Iterator[StandIn]:
    target, draft = (path.read_bytes() for path in (SMALL_PAIR.target, SMALL_PAIR.drafts[0]))
    with serving({"org/tiny-GGUF": {"tiny-Q8_0.gguf": target}, "org/tinier-GGUF": {"tinier-Q8_0.gguf": draft}}) as hub:
        yield hub


@pytest.fixture
def env(stand_in: StandIn, tmp_path: Path) -> dict[str, str]:
    """A home of its own, whose hub is the stand-in and whose registry knows its pair."""
    own = tmp_path / "config" / "edgespec" / "models.toml"
    own.parent.mkdir(parents=True)
    own.write_text(PAIR)
    moved = {"HF_ENDPOINT": stand_in.endpoint, "HF_HOME": str(tmp_path / "hf"), "HF_HUB_OFFLINE": "0"}
    return {**os.environ, **moved, "XDG_CONFIG_HOME": str(tmp_path / "config")}


def run(env: dict[str, str], *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [EDGESPEC, *map(str, arguments)],
        env=env,
        cwd=env["XDG_CONFIG_HOME"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


# --- the registry


def test_what_ships_is_sound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "own_file", lambda: tmp_path / "none.toml")
    known = registry.entries()
    assert len(known) >= 42
    for entry in known.values():
        assert all((entry.title, entry.licence, entry.needs, entry.verified)), entry.name
        assert entry.draft is None or (entry.vocabulary and entry.draft.size < 0.5 * entry.target.size), entry.name
        assert entry.draft is None or entry.head is None, entry.name
        assert entry.target.size
        assert listing.split_name(entry.target.repo) == (entry.target.repo, "")
    drafts = {(entry.vocabulary, entry.draft.repo) for entry in known.values() if entry.draft}
    assert len({repo for _, repo in drafts}) == len(drafts), "a draft has one vocabulary"
    checksums = [
        file.sha256 for entry in known.values() for file in (entry.target, entry.draft) if file and file.sha256
    ]
    assert len(set(checksums)) == len(checksums) > 20


def test_the_registry_knows_heads_hybrids_and_pinned_revisions() -> None:
    known = registry.entries()
    large = known["qwen3.8-27b"]
    assert (large.head, large.draft) == (registry.DraftHead("head"), None)
    assert large.target.revision == "4ca720788d1e01f1bff70c033e0d0028fd02e502"
    assert (large.newest, large.pictures, known["qwen3.6-27b"].newest, known["qwen3-8b"].newest) == (
        *(True, True),
        *(False, False),
    )
    assert (large.target.sizes.copies, large.target.sizes.cache) == (Copies(156_900_000, 3, 1), 65536)
    assert large.target.sizes.estimated
    apart = known["gemma-4-12b"].head
    assert apart is not None
    assert apart.file is not None
    assert (apart.kind, apart.file.file, apart.file.size) == ("head", "mtp-gemma-4-12B-it.gguf", 253_708_800)
    assert known["muse-glimmer-30b"].head == registry.DraftHead(
        "dflash", registry.HubFile("unsloth/Muse-Glimmer-30B-GGUF", "dflash-kquant.gguf", 1_631_205_312)
    )
    resolved = model_source.resolve_name("qwen3.8-27b")
    assert resolved is not None
    assert resolved.draft is None, "a head is no draft model"
    assert resolved.target.revision == large.target.revision
    by_quantization = model_source.resolve_name("gpt-oss-120b")
    assert by_quantization is not None
    assert str(by_quantization.target) == "ggml-org/gpt-oss-120b-GGUF mxfp4"


def test_the_users_own_file_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = tmp_path / "models.toml"
    monkeypatch.setattr(registry, "own_file", lambda: own)
    shipped = registry.entries()["qwen3-8b"]
    own.write_text('[qwen3-8b]\ntarget = { repo = "my/own", file = "x.gguf", size = 5 }\n' + PAIR)
    known = registry.entries()
    assert known["qwen3-8b"].target == registry.HubFile("my/own", "x.gguf", 5) != shipped.target
    assert known["qwen3-8b"].draft is None
    assert known["tiny"].size == 19600000
    assert len(known) > 12


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[a]\ntitle = 'x'", "a has no target"),
        ("a = 1", "a has no target"),
        ("[a", "is not TOML"),
        ("[a]\ntarget = 'x.gguf'", "a.target must be"),
        ("[a]\ntarget = { repo = 'o/n', file = 'x.gguf', size = 'big' }", "has size = 'big'; it must be a number"),
        ("[a]\ntarget = { repo = 'o/n', file = 'x.gguf', size = true }", "has size = True; it must be a number"),
        ("[a]\ntarget = { repo = 'o/n', file = 'x.gguf', size = -1 }", "has a size that is -1; it must be 0 or more"),
        (f"[a]\ntarget = {{ repo = 'o/n', file = 'x.gguf', size = {10**4000} }}", "has a size that is 1000"),
        ('["a\\u001b"]\ntarget = { repo = "o/n", file = "x.gguf", size = 1 }', "control characters in its name"),
        ('[a]\ntarget = { repo = "o/n\\u001b", file = "x.gguf", size = 1 }', "takes org/name"),
        (f"[a]\ntarget = {{ repo = 'o/n', file = 'x.gguf', size = 0x{'f' * 5000} }}", "has a size that is int that"),
        (f"[a]\ntarget = {{ repo = 'o/n', file = 'x.gguf', size = {'1' * 5000} }}", "is not TOML"),
        (f"a = {'[' * 3000}", "is not TOML"),
        (f"a = {'[' * 3000}{']' * 3000}", "is not TOML"),
        (f"a = {'{ b = ' * 3000}1{'}' * 3000}", "is not TOML"),
        (f"[a]\ntitle = {[['x'] * 3000]}\ntarget = 1", "has title = [['x', 'x'"),
        ("[a]\ntarget = { repo = 'n', file = 'x.gguf', size = 1 }", "it takes org/name and a .gguf file"),
        ("[a]\ntarget = { repo = 'o/n', file = 'x.bin', size = 1 }", "it takes org/name and a .gguf file"),
        ("[a]\ntarget = { repo = 'o/n', size = 1 }", "a.target must be"),
        ("[a]\ntarget = { repo = 'o/n', file = 'x.gguf', quantization = 'Q8_0' }", "a.target must be"),
        ("[a]\ntarget = { repo = 'o/n', quantization = 'Q8 0' }", "it must be a name such as Q4_K_M"),
        ("[a]\ntarget = { repo = 'o/n', file = 'x.gguf', sha256 = 'ab' }", "it must be 64 hexadecimal digits"),
        ("[a]\ntarget = { repo = 'o/n', file = 'x.gguf', revision = 'main' }", "it must be a commit"),
        (f"{_TARGET}draft = 'tail'", "a.draft must be"),
        (
            f"{_TARGET}draft = {{ repo = 'o/n', file = 'x.gguf', kind = 'tail' }}",
            "it must be head or dflash",
        ),
        (f"{_TARGET}draft = {{ repo = 'o/n', file = 'x.gguf', kind = 3 }}", "it must be text in quotes"),
        (f"{_TARGET}newest = 1", "has newest = 1; it must be true or false"),
        (f"{_TARGET}memory = 3", "a.memory must be"),
        (f"{_TARGET}memory = {{ weights = 3 }}", "a.memory must be"),
        (f"{_TARGET}memory = {{ window = true }}", "a.memory has window = True; it must be a number"),
        (f"{_TARGET}memory = {{ state = -3 }}", "a.memory.state is -3; it must be 0 or more"),
        ("[a]\ntarget = { repo = 'o/n', file = 'x.gguf', size = 1 }\nlicense = 'mit'", "has the unknown key 'license'"),
        ("[a]\ntarget = { repo = 'o/n', file = 'x.gguf', size = 1 }\nneeds = 4", "has needs = 4; it must be text"),
    ],
)
def test_a_registry_with_a_mistake_says_where(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, says: str
) -> None:
    own = tmp_path / "models.toml"
    own.write_text(text)
    monkeypatch.setattr(registry, "own_file", lambda: own)
    with pytest.raises(OptionError) as raised:
        registry.entries()
    assert says in str(raised.value)
    assert str(own) in str(raised.value)
    assert "\n" not in str(raised.value)
    assert len(str(raised.value)) < 600


def test_without_a_file_of_the_users_there_is_what_ships(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    for own in (tmp_path / "none.toml", tmp_path / "file" / "models.toml"):
        monkeypatch.setattr(registry, "own_file", lambda own=own: own)
        assert "qwen3-8b" in registry.entries()


# --- names


def test_what_exists_or_looks_like_a_path_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "qwen3-8b").mkdir()
    (tmp_path / "org").mkdir()
    for text in ("qwen3-8b", "missing.gguf", "org/name", "/a/b", "./a", "", "x" * 5000):
        assert model_source.resolve_name(text) is None, text
    (tmp_path / "qwen3-8b").rmdir()
    found = model_source.resolve_name("qwen3-8b")
    assert found is not None
    assert found.entry == registry.entries()["qwen3-8b"]
    assert model_source.resolve_name("some/repo:q8_0") == model_source.ResolvedName(
        model_source.Source("some/repo", quantization="q8_0")
    )
    with pytest.raises(OptionError, match="no model at qwen9, and none of that name is known"):
        model_source.resolve_name("qwen9")


def test_a_slip_of_a_name_is_told_what_was_meant() -> None:
    for slip, meant in (("Qwen3-8B", "qwen3-8b"), ("qwen38b", "qwen3-8b"), ("gemma3-4b", "gemma-3-4b")):
        with pytest.raises(OptionError, match=rf"\(did you mean {meant}"):
            model_source.resolve_name(slip)
    with pytest.raises(OptionError, match="is known: "):
        model_source.resolve_name("zzz")


@pytest.mark.parametrize("start", ["https://huggingface.co/", "http:/127.0.0.1:8000/"])
def test_the_address_of_a_page_names_its_repository_or_file(start: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:8000")
    for end in ("", "/", "/tree/main", "?tab=files", "#readme"):
        assert model_source.resolve_name(f"{start}some/repo-1.5{end}") == model_source.ResolvedName(
            model_source.Source("some/repo-1.5")
        )
    for kind in ("blob", "resolve"):
        found = model_source.resolve_name(f"{start}some/repo/{kind}/main/part%201/x-q8_0.gguf?download=true")
        assert found == model_source.ResolvedName(model_source.Source("some/repo", "part 1/x-q8_0.gguf"))
    for text in (f"{start}some/repo:q8_0", "hf.co/some/repo:q8_0", "huggingface.co/some/repo:q8_0"):
        assert model_source.resolve_name(text) == model_source.ResolvedName(
            model_source.Source("some/repo", quantization="q8_0")
        )
    for text in ("hf.co/some/repo", "127.0.0.1:8000/some/repo/", "huggingface.co/some/repo/tree/main"):
        assert model_source.resolve_name(text) == model_source.ResolvedName(model_source.Source("some/repo"))
    found = model_source.resolve_name("hf.co/some/repo/blob/main/x-q8_0.gguf")
    assert found == model_source.ResolvedName(model_source.Source("some/repo", "x-q8_0.gguf"))
    for path in ("models/some/repo", "git.example/some/repo", "hf.co/some"):
        assert model_source.resolve_name(path) in (
            None,
            model_source.ResolvedName(model_source.Source("hf.co/some")),
        ), path
    entry = registry.entries()["qwen3-14b"]
    assert getattr(model_source.resolve_name(start + entry.target.repo), "entry", None) == entry
    with pytest.raises(OptionError, match="of the revision v2; `edgespec models pull some/repo --revision v2` fetches"):
        model_source.resolve_name(f"{start}some/repo/tree/v2")
    assert model_source.resolve_name(f"{start}only-one") is None
    with pytest.raises(OptionError, match=r"git\.example is not the hub, which is 127\.0\.0\.1:8000 or hf\.co"):
        model_source.resolve_name("https://git.example/some/repo")


def test_a_repository_of_the_registry_brings_its_draft() -> None:
    entry = registry.entries()["qwen3-14b"]
    found = model_source.resolve_name(entry.target.repo)
    assert found is not None
    assert found.entry == entry
    again = model_source.resolve_name(f"{entry.target.repo}:q8_0")
    assert again is not None
    assert again.draft is None


def test_a_draft_is_found_by_its_vocabulary_and_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    target = tmp_path / "target.gguf"
    target.write_bytes(SMALL_PAIR.target.read_bytes())
    small = tmp_path / "other-name.gguf"
    small.write_bytes(SMALL_PAIR.drafts[0].read_bytes())
    (tmp_path / "text.gguf").write_text("no model")
    (tmp_path / "mmproj-x.gguf").write_bytes(small.read_bytes() + b"x")
    assistant = small.read_bytes().replace(b"llama", b"mimo2")  # a name of the same length
    assert assistant != small.read_bytes()
    (tmp_path / "head.gguf").write_bytes(assistant + b"xx")
    monkeypatch.setattr(head_header, "_ALONE", ("mimo2",))
    assert model_source.local_draft(target) is None, "more than a tenth"
    with target.open("ab") as file:
        file.truncate(12 * small.stat().st_size)
    assert model_source.local_draft(target) == small
    smaller = tmp_path / "smaller.gguf"
    smaller.write_bytes(small.read_bytes()[:-1000])
    assert model_source.local_draft(target) == small, "the largest of them"
    assert model_source.local_draft(tmp_path / "missing.gguf") is None


# --- commands


def test_a_name_is_fetched_and_chatted_with(env: dict[str, str], stand_in: StandIn) -> None:
    asked = ("chat", "tiny", "-p", "I need a train.", "--temp", "0", "--max-tokens", "8", "--k", "2", "--json")
    first = run(env, *asked)
    assert first.returncode == 0, first.stderr
    assert (
        f"Not here yet, so it is fetched into {env['HF_HOME']}/hub, 19.6 MB: org/tiny-GGUF tiny-Q8_0.gguf"
        in first.stderr
    )
    assert '"model"' in first.stdout, "the draft of the registry drafts"
    before = len(stand_in.asked)
    again = run({**env, "HF_HUB_OFFLINE": "1"}, *asked)
    assert (again.returncode, again.stderr) == (0, "")
    assert len(stand_in.asked) == before, "what is here asks nobody"
    listed = run(env, "models", "list").stdout
    assert next(line for line in listed.splitlines() if line.startswith("tiny ")).split()[1:4] == [
        "19.6",
        "MB",
        "yes",
    ]
    shown = run(env, "models", "show", "tiny", "--ctx", "2048").stdout
    assert "licence mit" in shown
    assert "for 2048 tokens" in shown
    assert "it fits" in shown


@pytest.mark.skipif(sys.platform == "win32", reason="pseudo-terminals need a Unix")
def test_on_a_terminal_it_is_asked_before_anything_is_fetched(env: dict[str, str], stand_in: StandIn) -> None:
    pexpect = pytest.importorskip("pexpect")

    def asked(answer: str, *arguments: str) -> tuple[str, int]:
        child = pexpect.spawn(EDGESPEC, list(arguments), env=env, dimensions=(50, 300), encoding="utf-8", timeout=60)
        if answer:
            child.expect(r"Fetch it\? \[Y/n\]: ")
            child.send(f"{answer}\r")
        child.expect(pexpect.EOF)
        child.close()
        return child.before, child.exitstatus

    hub = Path(env["HF_HOME"], "hub")
    before = len(stand_in.gets("tiny-Q8_0.gguf"))
    said, status = asked("n", "chat", "tiny", "-p", "x")
    assert status == 1
    assert "Error: nothing was fetched; name a model that is here" in said
    assert not list(hub.rglob("*.gguf"))
    source = "org/model"
    stand_in.repos[source] = {"config.json": b"{}", "model.safetensors": b"x" * 2000}
    assert "nothing was fetched" in asked("n", "convert", source, "--out", str(hub.parents[1] / "a.gguf"))[0]
    assert len(stand_in.gets("tiny-Q8_0.gguf")) == before
    wanted = ("chat", "org/tinier-GGUF", "--draft", "none", "-p", "x", "--k", "0", "--max-tokens", "1")
    assert asked("", *wanted, "--yes")[1] == 0
    assert [path.name for path in hub.rglob("*.gguf")] == ["tinier-Q8_0.gguf"]
    assert asked("", *wanted)[1] == 0, "what is here is not asked for"


def test_half_a_file_is_never_opened(env: dict[str, str], tmp_path: Path) -> None:
    folder = tmp_path / "hf" / "hub" / "models--org--tiny-GGUF"
    snapshot = folder / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    (folder / "blobs").mkdir()
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text(COMMIT)
    digest = etag(SMALL_PAIR.target.read_bytes())
    (folder / "blobs" / f"{digest}.edgespec-part").write_bytes(SMALL_PAIR.target.read_bytes()[:1_000_000])
    (snapshot / "tiny-Q8_0.gguf").symlink_to(Path("../../blobs") / digest)
    for name in ("tiny", "org/tiny-GGUF"):
        offline = run({**env, "HF_HUB_OFFLINE": "1"}, "chat", name, "-p", "x", "--draft", "none")
        assert offline.returncode == 1
        assert "is not in the cache, and HF_HUB_OFFLINE forbids" in offline.stderr
    listed = run(env, "models", "list")
    assert listed.returncode == 0, listed.stderr
    assert "GGUF files in" not in listed.stdout
    pulled = run(env, "models", "pull", "org/tiny-GGUF").stdout.partition("  ")[0]
    assert Path(pulled).read_bytes() == SMALL_PAIR.target.read_bytes(), "it goes on where it ended"


def test_what_is_not_here_is_listed_and_shown(env: dict[str, str]) -> None:
    listed = run(env, "models", "list")
    assert listed.returncode == 0, listed.stderr
    assert next(line for line in listed.stdout.splitlines() if line.startswith("qwen3-8b ")).split()[1:4] == [
        "5.67",
        "GB",
        "-",
    ]
    assert "models.toml" in listed.stdout
    shown = run(env, "models", "show", "qwen3-8b")
    assert "5.03 GB  not here" in shown.stdout
    assert "edgespec models pull qwen3-8b" in shown.stdout


def test_a_draft_that_is_not_to_be_had_is_left_out(env: dict[str, str]) -> None:
    own = Path(env["XDG_CONFIG_HOME"]) / "edgespec" / "models.toml"
    own.write_text(PAIR.replace("org/tinier-GGUF", "org/gone-GGUF"))
    chat = run(env, "chat", "tiny", "-p", "A train.", "--temp", "0", "--max-tokens", "4", "--k", "0", "--json")
    assert chat.returncode == 0, chat.stderr
    assert "The draft model is left out: org/gone-GGUF is not at http" in chat.stderr
    listed = run(env, "models", "list").stdout
    assert next(line for line in listed.splitlines() if line.startswith("tiny ")).split()[3:5] == ["in", "part"]


def test_a_repository_brings_a_draft_of_its_family(env: dict[str, str], stand_in: StandIn, tmp_path: Path) -> None:
    target, draft = (
        SMALL_PAIR.target.read_bytes() + bytes(10_000_000),
        SMALL_PAIR.drafts[0].read_bytes(),
    )
    with serving({"a/Talk-7B-GGUF": {"t-Q4_K_M.gguf": target}, "a/Talk-0.5B-GGUF": {"d-Q4_K_M.gguf": draft}}) as hub:
        env |= {"HF_ENDPOINT": hub.endpoint}
        shown = run(env, "models", "show", "a/Talk-7B-GGUF", "--ctx", "1000")
        assert shown.returncode == 0, shown.stderr
        assert "target  a/Talk-7B-GGUF t-Q4_K_M.gguf  25.7 MB  not here" in shown.stdout
        assert re.search(r"weights 25\.7 MB \+ cache \d+\.\d MB for 1000 tokens \+ buffers \d+\.\d MB = ", shown.stdout)
        assert "to fetch it: edgespec models pull a/Talk-7B-GGUF" in shown.stdout
        paired = run(env, "models", "pair", "a/Talk-7B-GGUF")
        assert "draft   a/Talk-0.5B-GGUF d-Q4_K_M.gguf" in paired.stdout, paired.stderr
        assert "found: of the family talk, found on the hub" in paired.stdout
        assert "vocabulary: the same" in paired.stdout
        assert "size: the draft has 10% of the target's bytes; good" in paired.stdout
        assert "speedup: known after both are fetched" in paired.stdout
        named = run(env, "models", "pair", "a/Talk-7B-GGUF", "a/Talk-0.5B-GGUF")
        assert "draft   a/Talk-0.5B-GGUF d-Q4_K_M.gguf" in named.stdout, named.stderr
        assert "found:" not in named.stdout
        hub.repos["a/Two"] = {"x-Q4_K_M.gguf": draft, "x-Q8_0.gguf": draft}
        long = run(env, "chat", "a/Two", "-p", "A train.", "--ctx", "16000000")
        assert "Error: nothing of a/Two fits into" in long.stderr
        assert not list(tmp_path.rglob("*.gguf")), "nothing was fetched"
        asked = ("chat", "a/Talk-7B-GGUF", "-p", "A train.", "--temp", "0", "--max-tokens", "4", "--k", "2", "--json")
        searches = hub.searches
        alone = run({**env, "HF_HOME": str(tmp_path / "other")}, *asked, "--draft", "none")
        assert alone.returncode == 0, alone.stderr
        assert hub.searches == searches, "none is wanted"
        hub.on_search = Fault(503)
        without = run({**env, "HF_HOME": str(tmp_path / "third")}, *asked)
        assert without.returncode == 0, without.stderr
        assert "No draft model was looked for: http" in without.stderr
        assert '"model"' not in without.stdout
        hub.on_search = Fault()
        first = run(env, *asked)
        assert first.returncode == 0, first.stderr
        lines = first.stderr.splitlines()
        assert "The draft model is a/Talk-0.5B-GGUF, of the family talk, found on the hub; --draft none" in lines[0]
        assert lines[1].endswith(", 28.3 MB: a/Talk-7B-GGUF t-Q4_K_M.gguf and a/Talk-0.5B-GGUF d-Q4_K_M.gguf")
        assert '"model"' in first.stdout
        assert hub.searches == searches + 2, "one of them in vain"
        before = len(hub.asked)
        again = run({**env, "HF_HUB_OFFLINE": "1"}, *asked)
        assert (again.returncode, again.stderr) == (0, "")
        assert '"model"' in again.stdout, "what was found once is found here"
        assert len(hub.asked) == before
        listed = run(env, "models", "list").stdout
        assert "   25.7 MB  a/Talk-7B-GGUF  t-Q4_K_M.gguf" in listed
        assert "    2.5 MB  a/Talk-0.5B-GGUF  d-Q4_K_M.gguf" in listed


def test_pull_takes_a_quantization_and_a_revision(env: dict[str, str], stand_in: StandIn) -> None:
    draft = SMALL_PAIR.drafts[0].read_bytes()
    stand_in.repos["org/both-GGUF"] = {"b-Q4_K_M.gguf": draft, "b-Q8_0.gguf": draft * 2}
    assert run(env, "models", "pull", "org/both-GGUF").stdout.strip().partition("  ")[0].endswith("b-Q4_K_M.gguf")
    finer = run(env, "models", "pull", "org/both-GGUF", "--quant", "Q8_0")
    assert finer.stdout.strip().partition("  ")[0].endswith("b-Q8_0.gguf"), finer.stderr
    other = run(env, "models", "pull", "org/both-GGUF:q8_0", "--revision", "v1")
    assert other.returncode == 0, other.stderr
    assert [path for _, path, _ in stand_in.asked if path == "/api/models/org/both-GGUF/revision/v1"]
    twice = run(env, "models", "pull", "org/both-GGUF:q8_0", "--quant", "q4_k_m")
    assert "names a quantization already" in twice.stderr
    pair = run(env, "models", "pull", "tiny", "--quant", "q8_0")
    assert len(pair.stdout.splitlines()) == 2, pair.stderr


def test_pull_says_what_came(env: dict[str, str]) -> None:
    done = run(env, "models", "pull", "org/tinier-GGUF")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().endswith(f"tinier-Q8_0.gguf  (commit {COMMIT[:12]})")
    for arguments, says in (
        (("models", "pull", "org/nothing"), "org/nothing is not at http"),
        (("models", "pull", "nothing"), "none of that name is known"),
        (("chat", "nothing", "-p", "x"), "none of that name is known"),
        (("chat", "org/tiny-GGUF:q2_k", "-p", "x"), "has no GGUF file of q2_k, but tiny-Q8_0.gguf"),
    ):
        failed = run(env, *arguments)
        assert failed.returncode == 1
        assert says in failed.stderr.strip().splitlines()[-1]
        assert failed.stderr.strip().splitlines()[-1].startswith("Error: ")


def test_a_checkpoint_is_fetched_and_converted(env: dict[str, str], stand_in: StandIn, tmp_path: Path) -> None:
    source = checkpoints.llama(tmp_path / "source")
    stand_in.repos["org/model"] = {path.name: path.read_bytes() for path in source.iterdir() if path.is_file()}
    done = run(env, "convert", "org/model", "--out", tmp_path / "a.gguf")
    assert done.returncode == 0, done.stderr
    assert run(env, "convert", source, "--out", tmp_path / "b.gguf").returncode == 0
    assert (tmp_path / "a.gguf").stat().st_size == pytest.approx((tmp_path / "b.gguf").stat().st_size, abs=200)


def test_pair_diagnoses(env: dict[str, str], tmp_path: Path) -> None:
    same = run(env, "models", "pair", SMALL_PAIR.target, SMALL_PAIR.draft or "")
    assert same.returncode == 0, same.stderr
    assert "vocabulary: the same" in same.stdout
    assert "template: " in same.stdout
    assert "speedup" in same.stdout
    other = tmp_path / "other.gguf"
    assert run(env, "convert", checkpoints.llama(tmp_path / "source"), "--out", other).returncode == 0
    differs = run(env, "models", "pair", SMALL_PAIR.target, other).stdout
    assert "vocabulary: target and draft have different vocabularies: token" in differs
    assert "speedup" not in differs
    assert "no model at" in run(env, "models", "pair", tmp_path / "none.gguf", SMALL_PAIR.target).stderr
    alone = run({**env, "HF_HUB_OFFLINE": "1"}, "models", "pair", other)
    assert "no draft model for" in alone.stderr
    assert len(alone.stderr.splitlines()) == 1
