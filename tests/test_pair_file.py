"""Pair files, and the commands and the library that open them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import edgespec
from edgespec import Device, models
from edgespec.converters import convert
from edgespec.errors import ModelFileError
from edgespec.library import Job, resolve
from edgespec.runtime.loading import Files
from edgespec.storage import pair_file as pairfile

from . import checkpoints
from .commandline import last_error, run
from .small_pair import SMALL_PAIR

BOTH = {"target": str(SMALL_PAIR.target), "draft": str(SMALL_PAIR.draft)}
PROMPTS = '{"prompt": "I need a table"}\n{"prompt": "for two"}\n'


def written(folder: Path, content: Any) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / pairfile.NAME
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def test_paths_are_those_beside_the_file(tmp_path: Path) -> None:
    path = written(tmp_path / "pair", {"target": "t.gguf", "draft": "more/d", "date": "2026-01-01"})
    (path.parent / "t.gguf").touch()
    (path.parent / "more" / "d").mkdir(parents=True)
    found = pairfile.read(path)
    assert found == pairfile.PairFile(path.parent / "t.gguf", (path.parent / "more" / "d",), {"date": "2026-01-01"})
    assert models.with_draft(path) == models.with_draft(path.parent) == (found.target, found.drafts)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("{", "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ("\udcff", "is not JSON"),
        ("[]", "it is not a table of target, draft"),
        ({"draft": str(SMALL_PAIR.draft)}, 'has no target; add "target": "target.gguf"'),
        ({"target": str(SMALL_PAIR.target)}, "has no draft"),
        ({**BOTH, "drafts": 3}, "'drafts' is not a known key; it has target, draft"),
        ({**BOTH, "measured": {"speed": 3}}, "'speed' is not a known key; measured has acceptance"),
        (
            {**BOTH, "measured": {"acceptance": [0.5, "x"]}},
            "measured.acceptance is [0.5, 'x']; it must be a list of num",
        ),
        ({**BOTH, "measured": {"acceptance": 0.5}}, "measured.acceptance is 0.5; it must be a list of numbers"),
        ({**BOTH, "measured": {"k": 1.5}}, "measured.k is 1.5; it must be a whole number"),
        ({**BOTH, "measured": {"k": True}}, "measured.k is True"),
        ({**BOTH, "measured": {"k": 10**400}}, "it must be a whole number below 1e+15"),
        ({**BOTH, "measured": {"acceptance": [0.5, 10**400]}}, "it must be a list of numbers below 1e+15"),
        ({**BOTH, "measured": {"speedup": float("nan")}}, "measured.speedup is nan; it must be a number"),
        ({**BOTH, "measured": {"speedup": float("-inf")}}, "measured.speedup is -inf; it must be a number"),
        ('{"target": 1' + "0" * 5000 + "}", "is not JSON"),
        ({**BOTH, "made_of": {"target": {"source": ["x"] * 5000}}}, "made_of.target.source is ['x', 'x'"),
        ({**BOTH, "k" * 5000: 1}, "is not a known key"),
        ({**BOTH, "draft": "\ud800"}, "as its draft, which does not exist"),
        ({**BOTH, "measured": {"speedup": "fast"}}, "measured.speedup is 'fast'; it must be a number"),
        ({**BOTH, "made_of": {"target": []}}, "made_of.target is not a table of source, commit, quantization"),
        ({**BOTH, "draft": 3}, "draft is 3; it must be a text"),
        ({**BOTH, "draft": "gone.gguf"}, "names 'gone.gguf' as its draft, which does not exist"),
        ({**BOTH, "target": ""}, "names '' as its target, which does not exist"),
        ({**BOTH, "target": "x" * 300}, "as its target, which does not exist"),
        ({**BOTH, "target": "a\0b"}, "as its target, which does not exist"),
    ],
)
def test_a_broken_file_says_what_is_wrong(tmp_path: Path, content: Any, says: str) -> None:
    path = tmp_path / "pair" / pairfile.NAME
    path.parent.mkdir()
    text = content if isinstance(content, str) else json.dumps(content)
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    for read in (pairfile.read, models.with_draft, edgespec.load):
        with pytest.raises(ModelFileError) as caught:
            read(path)
        assert str(path) in str(caught.value)
        assert says in str(caught.value)
        assert len(str(caught.value)) < 600
        assert "\n" not in str(caught.value)


def test_what_is_written_can_be_read(tmp_path: Path) -> None:
    """By people too; and with a mark at its beginning, as some editors write it."""
    origin = {"source": "Jürgen/\udcff", "commit": "", "quantization": "q8_0"}
    given = {**BOTH, "made_of": {"target": origin}}
    data = pairfile.content(given)
    assert "Jürgen/\\udcff".encode() in data
    path = written(tmp_path / "pair", {})
    for beginning in (b"", b"\xef\xbb\xbf"):
        path.write_bytes(beginning + data)
        assert pairfile.read(path).about == {"made_of": {"target": origin}}
    with pytest.raises(ModelFileError, match="is not a known key"):
        pairfile.content({**BOTH, "more": 1})


def test_a_file_that_is_not_there_or_a_folder(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="no pair file at"):
        models.with_draft(tmp_path / "pair.json")
    (tmp_path / "x" / pairfile.NAME).mkdir(parents=True)
    assert pairfile.at(tmp_path / "x") is None
    with pytest.raises(ModelFileError, match="cannot be read"):
        pairfile.read(tmp_path / "x" / pairfile.NAME)


@pytest.mark.parametrize("name", ["pair", "pair/pair.json"])
def test_the_library_opens_a_pair(tmp_path: Path, name: str) -> None:
    written(tmp_path / "pair", BOTH)
    with edgespec.load(tmp_path / name, device=Device(threads=1)) as runtime:
        assert runtime.drafters == ("lookup", "model")
    with edgespec.load(str(tmp_path / name), SMALL_PAIR.target, device=Device(threads=1)) as runtime:
        assert runtime.description == " with draft ".join([runtime.description.split(" with ")[0]] * 2)


def test_the_library_finds_the_draft_that_the_command_finds(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").symlink_to(SMALL_PAIR.target)

    def drafters(*draft: Any) -> tuple[str, ...]:
        with edgespec.load(tmp_path / "m.gguf", *draft, device=Device(256, 1)) as runtime:
            assert runtime.notices == []
            return runtime.drafters

    assert drafters() == ("lookup", "recycling"), "none is there"
    (tmp_path / "m.draft.gguf").symlink_to(SMALL_PAIR.draft or "")
    assert drafters() == drafters(None) == drafters("auto") == ("lookup", "model")
    assert drafters("none") == ("lookup", "recycling")
    folder = written(tmp_path / "pair", BOTH).parent
    with edgespec.load(folder, "none", device=Device(256, 1)) as runtime:
        assert runtime.drafters == ("lookup", "recycling"), "nor that of a pair"


def test_a_draft_that_happens_to_lie_beside_the_model_is_left_out_with_a_notice(tmp_path: Path) -> None:
    list(convert(checkpoints.llama(tmp_path / "source"), tmp_path / "draft.gguf", fmt="gguf", quantization="q8_0"))
    (tmp_path / "m.gguf").symlink_to(SMALL_PAIR.target)
    with edgespec.load(tmp_path / "m.gguf", device=Device(256, 1)) as runtime:
        assert runtime.drafters == ("lookup", "recycling")
        (notice,) = runtime.notices
        assert notice.startswith(f"{tmp_path / 'draft.gguf'}, found beside the model, is left out: target and draft")
    with edgespec.load(tmp_path / "m.gguf", tmp_path / "draft.gguf", device=Device(256, 1)) as runtime:
        assert runtime.drafters == ("lookup", "cross-vocabulary"), "one that was named drafts through text"


def test_commands_open_a_pair(tmp_path: Path) -> None:
    folder = written(tmp_path / "pair", BOTH).parent
    asked = ("-p", "I need a table", "--temp", "0", "--k", "3", "--max-tokens", "8", "--json")
    for name in (folder, folder / pairfile.NAME):
        assert '"model"' in run("chat", name, *asked).stdout
    assert '"model"' not in run("chat", folder, "--draft", "none", *asked).stdout
    (tmp_path / "prompts.jsonl").write_text(PROMPTS)
    done = run("check", folder, "--prompts", tmp_path / "prompts.jsonl", "--k", "3", "--max-tokens", "8")
    assert "2 of 2 prompts" in done.stdout, done.stderr
    assert resolve(folder, "auto", Job()) == Files(SMALL_PAIR.target, SMALL_PAIR.drafts)
    assert resolve(str(folder), "none", Job()) == Files(SMALL_PAIR.target)
    assert resolve(folder, "other.gguf", Job()) == Files(SMALL_PAIR.target, (Path("other.gguf"),))
    done = run("models", "pair", folder)
    assert str(SMALL_PAIR.draft) in done.stdout, done.stderr
    assert str(SMALL_PAIR.draft) in run("models", "show", folder).stdout
    written(folder, {**BOTH, "measured": {"acceptance": [0.61, 0.9]}, "date": "2026-01-01"})
    assert "acceptance by depth: 61% 90% (measured 2026-01-01)\n" in run("models", "show", folder).stdout
    written(folder, {**BOTH, "draft": "gone"})
    assert "names 'gone' as its draft" in last_error(run("chat", folder, "-p", "x"))
    assert "no pair file at org/pair.json" in last_error(run("chat", "org/pair.json", "-p", "x"))


def test_a_pairs_folder_is_no_draft(tmp_path: Path) -> None:
    """Beside an ONNX model, under the name by which a draft is found."""
    for name in ("model", "draft/target", "draft/draft"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "model.onnx").touch()
    written(tmp_path / "draft", {"target": "target", "draft": "draft"})
    assert models.with_draft(tmp_path / "model") == (tmp_path / "model", ())
    assert models.with_draft(tmp_path / "draft") == (tmp_path / "draft" / "target", (tmp_path / "draft" / "draft",))
