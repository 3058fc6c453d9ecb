"""`convert --pair`, which makes a pair."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections import namedtuple
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from edgespec.converters import conversion_cache, pair, quantize
from edgespec.errors import ConversionError, OptionError
from edgespec.models.sizes import amount
from edgespec.runtime.speculation import Speculation
from edgespec.terminal import convert_pair
from edgespec.terminal.options import PairOptions

from . import checkpoints
from .commandline import last_error, run
from .hubserver import COMMIT, serving

PROMPTS = '{"prompt": "I need a table"}\n{"prompt": "for two"}\n'


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    file = tmp_path / "prompts.jsonl"
    file.write_text(PROMPTS)
    return file


@pytest.fixture
def make(small_llama: Path, tmp_path: Path, prompts: Path) -> Callable[..., bool]:
    """`convert --pair` of a checkpoint with itself, unless told otherwise."""

    def made(
        *, target: Path = small_llama, draft: Path = small_llama, fmt: str = "gguf", force: bool = False, **given: Any
    ) -> bool:
        asked = PairOptions((target, draft), given.get("draft_quant"), given.get("prompts", prompts), 12, True, False)
        return convert_pair.make(asked, given.get("out", tmp_path / "pair"), fmt, given.get("quant"), force=force)

    return made


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize(("fmt", "files"), [("gguf", ["target.gguf", "draft.gguf"]), ("onnx", ["target", "draft"])])
def test_a_pair_is_made_and_opens(
    fmt: str, files: list[str], small_llama: Path, prompts: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """A model that drafts for itself is always right."""
    out = tmp_path / "pair"
    options = ("--to", fmt, "--prompts", prompts, "--max-tokens", "120", "--out", out)
    done = run("convert", "--pair", small_llama, small_llama, *options)
    assert done.returncode == 0, done.stderr
    assert names(out) == sorted([*files, "pair.json"])
    told, said = done.stderr.splitlines(), done.stdout.splitlines()
    size = sum(path.stat().st_size for path in [*(out / files[0]).rglob("*"), out / files[0]] if path.is_file())
    quantization = {"gguf": "q8_0", "onnx": "int8"}[fmt]
    assert "template: the same" in told
    assert any(re.fullmatch(r"vocabulary: the same \d+ tokens", line) for line in told)
    assert any("the draft has 100% of the target's; a tenth pays most" in line for line in told)
    assert said[0] == f"target  {out / files[0]}  {amount(size)}  {quantization}"
    assert said[2].startswith("acceptance by depth: 100%")
    assert said[3].startswith("speedup expected at the prices of this machine: ")
    # Of random weights many tokens are near ties, which trees decide otherwise.
    assert re.fullmatch(r"check: 2 of 2 prompts: \d identical, \d near ties, 0 different", said[4])
    assert re.fullmatch(r"memory: \d+\.\d+ [MG]B.* with a context of 512 tokens; it fits", said[5])
    assert said[-1] == f"edgespec chat {out}"
    kept = json.loads((out / "pair.json").read_text())
    assert [kept["target"], kept["draft"]] == files
    assert kept["made_of"]["target"] == {"source": str(small_llama), "commit": "", "quantization": quantization}
    assert set(kept["measured"]["acceptance"]) == {1.0}
    assert kept["measured"]["prompts"] == str(prompts)
    chat = run("chat", out, "-p", "I need", "--temp", "0", "--k", "2", "--max-tokens", "6", "--json")
    assert '"model"' in chat.stdout, chat.stderr
    assert "holds a pair" in last_error(run("convert", "--pair", small_llama, small_llama, *options))


def test_json_has_the_same_figures(
    make: Callable[..., bool], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert make(draft_quant="F16")
    (line,) = capsys.readouterr().out.splitlines()
    said, kept = json.loads(line), json.loads((tmp_path / "pair" / "pair.json").read_text())
    assert {key: said[key] for key in kept if key != "date"} == {key: kept[key] for key in kept if key != "date"}
    assert kept["made_of"]["draft"]["quantization"] == "f16"
    assert (said["vocabulary"], said["share"], said["passed"]) == ("same", 1.0, True)
    assert said["memory"]["needed"] > 0
    assert len(said["prices"]) > 8
    assert said["step"] > 0


def test_what_is_made_of_the_same_files_is_kept(
    make: Callable[..., bool], small_llama: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own, out = Path(shutil.copytree(small_llama, tmp_path / "own")), tmp_path / "pair"
    assert make(target=own)
    before = {path.name: path.stat().st_mtime_ns for path in out.iterdir()}

    def changed() -> set[str]:
        now = {path.name: path.stat().st_mtime_ns for path in out.iterdir()}
        assert now.keys() == before.keys()
        return {name for name in now if now[name] != before[name]}

    assert make(target=own, force=True)
    assert changed() == {"pair.json"}
    assert capsys.readouterr().err.count("is up to date and is kept") == 2
    os.utime(own / "model.safetensors", ns=(0, 0))
    assert make(target=own, force=True)
    assert changed() == {"pair.json", "target.gguf"}
    assert make(target=own, draft_quant="q4_0", force=True)
    assert changed() == {"pair.json", "target.gguf", "draft.gguf"}
    (out / "pair.json").unlink()
    with pytest.raises(ConversionError, match=r"draft\.gguf exists"):
        make(target=own)
    (out / "draft.gguf").write_bytes(b"edited")
    with pytest.raises(ConversionError, match=r"draft\.gguf exists"):
        make(target=own, draft_quant="q4_0")
    assert (out / "draft.gguf").read_bytes() == b"edited"
    assert names(out) == ["draft.gguf", "target.gguf"]


def test_interrupted_while_it_measures_it_goes_on_there(
    make: Callable[..., bool], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: Any) -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(convert_pair, "_check", interrupted)
        with pytest.raises(KeyboardInterrupt):
            make()
    assert names(tmp_path / "pair") == ["draft.gguf", "target.gguf"]
    assert make()
    assert capsys.readouterr().err.count("is kept") == 2
    assert "pair.json" in names(tmp_path / "pair")


def test_interrupted_in_the_draft_the_target_is_there(
    make: Callable[..., bool], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed, calls = quantize.packed, []

    def interrupted(*given: Any) -> Any:
        calls.append(names(tmp_path / "pair"))
        if "target.gguf" in calls[-1]:
            raise KeyboardInterrupt
        return packed(*given)

    with monkeypatch.context() as patch:
        patch.setattr(quantize, "packed", interrupted)
        with pytest.raises(KeyboardInterrupt):
            make()
    assert names(tmp_path / "pair") == ["target.gguf"]
    assert any(name.endswith(".part") for name in calls[-1])
    assert make()


def test_interrupted_at_once_no_folder_is_left(
    make: Callable[..., bool], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(quantize, "packed", interrupted)
    with pytest.raises(KeyboardInterrupt):
        make()
    assert not (tmp_path / "pair").exists()


def test_a_draft_of_another_vocabulary_drafts_through_text(
    make: Callable[..., bool], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = checkpoints.llama(tmp_path / "other", tokenizer="spm-json", config={"bos_token_id": 1})
    make(draft=other)
    said = capsys.readouterr()
    assert "vocabulary: target and draft have different vocabularies: token 0 is" in said.err
    assert "it drafts through text" in said.err
    found = json.loads(said.out)
    assert "different vocabularies" in found["vocabulary"]
    assert "A draft of the target's own family" in found["advice"][-1]
    done = run("chat", tmp_path / "pair", "-p", "I need", "--temp", "0", "--max-tokens", "4")
    assert "so it drafts through text" in done.stderr
    assert "left out" not in done.stderr


def test_another_conversion_at_work_is_refused(make: Callable[..., bool], tmp_path: Path) -> None:
    """By a process of its own; when that is killed the folder is free."""
    code = """
import sys
from pathlib import Path
from edgespec.converters import pair
from edgespec.models.sizes import amount
with pair.held(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""
    holder = subprocess.Popen(
        [sys.executable, "-I", "-c", code, str(tmp_path / "pair")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(ConversionError, match="another conversion is running"):
            make()
    finally:
        holder.kill()
        holder.communicate()
    assert make()
    assert names(tmp_path / "pair") == ["draft.gguf", "pair.json", "target.gguf"]


def test_what_fails_while_the_folder_is_held_is_told_as_it_is(tmp_path: Path) -> None:
    for error in (BrokenPipeError, TimeoutError):
        with pytest.raises(error), pair.held(tmp_path / "pair"):
            raise error
    assert names(tmp_path) == []


def test_places_that_cannot_be(make: Callable[..., bool], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "pair"
    out.write_text("mine")
    with pytest.raises(ConversionError, match="is a file"):
        make()
    out.unlink()
    (out / "notes").mkdir(parents=True)
    for force in (False, True):
        with pytest.raises(ConversionError, match="holds notes, which does not belong to a pair"):
            make(force=force)
    (out / "notes").rmdir()
    (out / "target.gguf").write_text("mine")
    with pytest.raises(ConversionError, match=r"target\.gguf exists"):
        make()
    assert (out / "target.gguf").read_text() == "mine"
    with pytest.raises(ConversionError, match="does not exist"):
        make(out=tmp_path / "no" / "pair")
    with pytest.raises(ConversionError, match="cannot be written"):
        make(out=tmp_path / ("x" * 300))
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(ConversionError, match="cannot be written"):
        make(out=tmp_path / "other")
    with pytest.raises(ConversionError, match="cannot be written"):
        make(out=out, force=True)
    assert (out / "target.gguf").read_text() == "mine"


def test_a_full_disk_leaves_nothing(make: Callable[..., bool], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(0, 0, 1000))
    with pytest.raises(ConversionError, match=r"not enough space for .*target\.gguf"):
        make()
    assert not (tmp_path / "pair").exists()


def test_what_can_be_refused_is_refused_before_the_work(
    make: Callable[..., bool], tmp_path: Path, prompts: Path
) -> None:
    with pytest.raises(ConversionError, match="nowhere does not exist"):
        make(target=tmp_path / "nowhere")
    with pytest.raises(ConversionError, match="nowhere does not exist"):
        make(draft=tmp_path / "nowhere")
    with pytest.raises(OptionError, match="unknown quantization 'q9'"):
        make(target=tmp_path / "nowhere", quant="q9")
    with pytest.raises(OptionError, match="unknown quantization 'int4'"):
        make(target=tmp_path / "nowhere", draft_quant="int4")
    with pytest.raises(OptionError, match="known: gguf, onnx"):
        make(target=tmp_path / "nowhere", fmt="pickle")
    for line, says in (("{", "line 2 is not JSON"), ('{"messages": [{"role": "user"}]}', "line 2: a message is")):
        prompts.write_text('{"prompt": "fine"}\n' + line)
        with pytest.raises(OptionError, match=says):
            make(target=tmp_path / "nowhere")
    assert not (tmp_path / "pair").exists()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "give one checkpoint, or two with --pair TARGET DRAFT"),
        (["a", "--pair", "a", "b"], "give one checkpoint, or two with --pair"),
        (["a", "--draft-quant", "q8_0"], "--draft-quant is for --pair"),
        (["a", "--prompts", "x"], "--prompts is for --pair"),
        (["a", "--max-tokens", "0"], "--max-tokens is for --pair"),
        (["a", "--json"], "--json is for --pair"),
        (["--pair", "a", "b", "--max-tokens", "0"], "--max-tokens is 0; it must be 1 or more"),
    ],
)
def test_options_that_make_no_sense(tmp_path: Path, arguments: list[str], says: str) -> None:
    assert says in last_error(run("convert", *arguments, "--out", tmp_path / "pair"))
    assert names(tmp_path) == []


def test_names_on_the_hub_are_fetched_and_their_commit_is_noted(
    small_llama: Path, prompts: Path, tmp_path: Path
) -> None:
    files = {path.name: path.read_bytes() for path in small_llama.iterdir()}
    with serving({"org/target": files, "org/draft": files}) as hub:
        env = {"HF_ENDPOINT": hub.endpoint, "HF_HOME": str(tmp_path / "hf"), "HF_HUB_OFFLINE": "0"}
        options = ("--prompts", prompts, "--max-tokens", "4", "--out", tmp_path / "pair")
        done = run("convert", "--pair", "org/target", "org/draft", *options, env=env)
    assert done.returncode == 0, done.stderr
    kept = json.loads((tmp_path / "pair" / "pair.json").read_text())
    for role in pair.ROLES:
        assert kept["made_of"][role] == {"source": f"org/{role}", "commit": COMMIT, "quantization": "q8_0"}


def test_a_name_on_the_hub_without_a_hub(small_llama: Path, tmp_path: Path) -> None:
    env = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "hf")}
    done = run("convert", "--pair", small_llama, "org/draft", "--out", tmp_path / "pair", env=env)
    assert "org/draft" in last_error(done)
    assert not (tmp_path / "pair").exists()


def test_a_source_that_cannot_be_listed(tmp_path: Path) -> None:
    """A link to itself, say."""
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    found = conversion_cache.CachedConversion.of(tmp_path, tmp_path / "x.gguf", "gguf", "q8_0")
    assert not found.is_current


def test_a_pard_draft_is_measured_in_blocks(
    make: Callable[..., bool], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[Any, ...]] = []

    def recorded(*given: Any) -> Speculation:
        asked.append(given)
        return Speculation(*given)

    monkeypatch.setattr(convert_pair, "Speculation", recorded)
    assert make(draft=checkpoints.llama(tmp_path / "source", config={"pard_token": 7}))
    assert asked == [(("pard",), 8)]
