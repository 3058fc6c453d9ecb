"""`edgespec models rm`: what is deleted from the cache of the Hugging Face tools, and what stays."""

from __future__ import annotations

import os
from pathlib import Path

import huggingface_hub.constants
import pytest
from click.testing import CliRunner, Result

from edgespec.cli import app
from edgespec.errors import OptionError

COMMITS = ("a" * 40, "b" * 40)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache with two commits of one repository, which share a file, and with another repository."""
    hub = tmp_path / "hf" / "hub"
    folder = hub / "models--org--one"
    for name in ("q8", "q4", "card"):
        (folder / "blobs").mkdir(parents=True, exist_ok=True)
        (folder / "blobs" / name).write_bytes(name.encode() * 100)
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text(COMMITS[1])
    for commit in COMMITS:
        (folder / "snapshots" / commit).mkdir(parents=True)
        for file, blob in {"one-Q8_0.gguf": "q8", "one-Q4_0.gguf": "q4", "README.md": "card"}.items():
            (folder / "snapshots" / commit / file).symlink_to(f"../../blobs/{blob}")
    other = hub / "models--org--two" / "snapshots" / COMMITS[0]
    other.mkdir(parents=True)
    (other.parents[1] / "refs").mkdir()
    (other.parents[1] / "refs" / "main").write_text(COMMITS[0])
    (other / "two-Q8_0.gguf").write_bytes(b"two")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(hub))
    return hub


def run(*words: str) -> Result:
    return CliRunner().invoke(app, words)


def refused(done: Result) -> str:
    assert isinstance(done.exception, OptionError), done
    return str(done.exception)


def names(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if not path.is_dir())


def test_one_quantization_goes_in_all_commits(cache: Path) -> None:
    done = run("models", "rm", "org/one:q8_0", "--yes")
    assert done.exit_code == 0, done
    assert "deleted one-Q8_0.gguf of org/one" in done.stdout
    left = names(cache / "models--org--one")
    assert not any("q8" in name.lower() for name in left)
    assert sum("Q4_0" in name for name in left) == 2
    assert {"blobs/q4", "blobs/card", "refs/main"} <= set(left)
    assert (cache / "models--org--one" / "snapshots" / COMMITS[0] / "one-Q4_0.gguf").read_bytes() == b"q4" * 100
    assert names(cache / "models--org--two"), "another repository stays"


def test_the_last_file_takes_the_folder(cache: Path) -> None:
    """Here the content is in the commit itself, as on systems without links."""
    assert run("models", "rm", "org/two", "--yes").exit_code == 0
    assert not (cache / "models--org--two").exists()
    assert (cache / "models--org--one").exists()


def test_it_asks_first(cache: Path) -> None:
    before = names(cache)
    assert "allow it with --yes" in refused(run("models", "rm", "org/two"))
    assert names(cache) == before


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("org/one", "one-Q4_0.gguf, one-Q8_0.gguf in the cache; name one"),
        ("org/one:q6_k", "is not in the cache"),
        ("org/three", "is not in the cache"),
        ("nonsense", "no model at nonsense"),
        ("./model.gguf", "is a path"),
    ],
)
def test_what_is_refused(name: str, said: str, cache: Path) -> None:
    before = names(cache)
    assert said in refused(run("models", "rm", name, "--yes"))
    assert names(cache) == before


def test_links_that_leave_the_cache_are_not_followed(cache: Path, tmp_path: Path) -> None:
    mine = tmp_path / "mine.gguf"
    mine.write_bytes(b"mine")
    link = cache / "models--org--two" / "snapshots" / COMMITS[0] / "two-Q8_0.gguf"
    link.unlink()
    link.symlink_to(os.path.relpath(mine, link.parent))
    assert "outside of the cache" in refused(run("models", "rm", "org/two", "--yes"))
    assert mine.read_bytes() == b"mine"


def test_the_list_says_what_the_cache_takes(cache: Path) -> None:
    assert "with all else in it" in run("models", "list").stdout
