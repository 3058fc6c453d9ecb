"""Pair files, and `convert --pair`, which makes them."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections import namedtuple
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import edgespec
from edgespec import Device, Sampling, Speculation, models
from edgespec.backends.toy import Bytes, ToyModel, blend, ngram_rule
from edgespec.converters import conversion_cache, convert, pair, quantize
from edgespec.converters.checkpoint import Checkpoint
from edgespec.converters.compatibility import Likeness
from edgespec.errors import ConversionError, Interrupted, ModelFileError, OptionError
from edgespec.library import Job, resolve
from edgespec.models.sizes import amount
from edgespec.runtime.loading import Files
from edgespec.storage import pair_file as pairfile
from edgespec.terminal import convert_pair
from edgespec.terminal.check_report import Report
from edgespec.terminal.options import Pairing
from edgespec.terminal.pair_report import Findings, Made
from edgespec.tools.check import Divergence, Verdict
from edgespec.tools.draft_value import Worth, weigh

from . import checkpoints
from .hubserver import COMMIT, serving

DEMO = models.demo()
EDGESPEC = str(Path(sys.executable).parent / "edgespec")
BOTH = {"target": str(DEMO.target), "draft": str(DEMO.draft)}
PROMPTS = '{"prompt": "I need a table"}\n{"prompt": "for two"}\n'


def run(*arguments: str | Path, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [EDGESPEC, *map(str, arguments)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env={**os.environ, **(env or {})},
    )


def refused(done: subprocess.CompletedProcess[str]) -> str:
    """The last line that a failed run leaves on stderr, an error in one line."""
    assert done.returncode in (1, 2), done
    assert "Traceback" not in done.stderr + done.stdout
    assert done.stderr.splitlines()[-1].startswith("Error: ")
    return done.stderr.splitlines()[-1]


def written(folder: Path, content: Any) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / pairfile.NAME
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


# --- the file


def test_paths_are_those_beside_the_file(tmp_path: Path) -> None:
    path = written(tmp_path / "pair", {"target": "t.gguf", "draft": "more/d", "date": "2026-01-01"})
    (path.parent / "t.gguf").touch()
    (path.parent / "more" / "d").mkdir(parents=True)
    found = pairfile.read(path)
    assert found == pairfile.PairFile(path.parent / "t.gguf", path.parent / "more" / "d", {"date": "2026-01-01"})
    assert models.with_draft(path) == models.with_draft(path.parent) == (found.target, found.draft)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("{", "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ("\udcff", "is not JSON"),
        ("[]", "it is no table of target, draft"),
        ({"draft": str(DEMO.draft)}, 'has no target; add "target": "target.gguf"'),
        ({"target": str(DEMO.target)}, "has no draft"),
        ({**BOTH, "drafts": 3}, "'drafts' means nothing; it has target, draft"),
        ({**BOTH, "measured": {"speed": 3}}, "'speed' means nothing; measured has acceptance"),
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
        ({**BOTH, "k" * 5000: 1}, "means nothing"),
        ({**BOTH, "draft": "\ud800"}, "as its draft, and nothing is there"),
        ({**BOTH, "measured": {"speedup": "fast"}}, "measured.speedup is 'fast'; it must be a number"),
        ({**BOTH, "made_of": {"target": []}}, "made_of.target is no table of source, commit, quantization"),
        ({**BOTH, "draft": 3}, "draft is 3; it must be a text"),
        ({**BOTH, "draft": "gone.gguf"}, "names 'gone.gguf' as its draft, and nothing is there"),
        ({**BOTH, "target": ""}, "names '' as its target, and nothing is there"),
        ({**BOTH, "target": "x" * 300}, "as its target, and nothing is there"),
        ({**BOTH, "target": "a\0b"}, "as its target, and nothing is there"),
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
    with pytest.raises(ModelFileError, match="means nothing"):
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
    with edgespec.load(str(tmp_path / name), DEMO.target, device=Device(threads=1)) as runtime:
        assert runtime.description == " with draft ".join([runtime.description.split(" with ")[0]] * 2)


def test_the_library_finds_the_draft_that_the_command_finds(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").symlink_to(DEMO.target)

    def drafters(*draft: Any) -> tuple[str, ...]:
        with edgespec.load(tmp_path / "m.gguf", *draft, device=Device(256, 1)) as runtime:
            assert runtime.notices == []
            return runtime.drafters

    assert drafters() == ("lookup",), "none is there"
    (tmp_path / "m.draft.gguf").symlink_to(DEMO.draft or "")
    assert drafters() == drafters(None) == drafters("auto") == ("lookup", "model")
    assert drafters("none") == ("lookup",)
    folder = written(tmp_path / "pair", BOTH).parent
    with edgespec.load(folder, "none", device=Device(256, 1)) as runtime:
        assert runtime.drafters == ("lookup",), "nor that of a pair"


def test_a_draft_that_happens_to_lie_beside_the_model_is_left_out_with_a_notice(tmp_path: Path) -> None:
    list(convert(checkpoints.llama(tmp_path / "source"), tmp_path / "draft.gguf", fmt="gguf", quantization="q8_0"))
    (tmp_path / "m.gguf").symlink_to(DEMO.target)
    with edgespec.load(tmp_path / "m.gguf", device=Device(256, 1)) as runtime:
        assert runtime.drafters == ("lookup",)
        (notice,) = runtime.notices
        assert notice.startswith(f"{tmp_path / 'draft.gguf'}, found beside the model, is left out: target and draft")
    with edgespec.load(tmp_path / "m.gguf", tmp_path / "draft.gguf", device=Device(256, 1)) as runtime:
        assert runtime.drafters == ("lookup", "words"), "one that was named drafts through text"


def test_commands_open_a_pair(tmp_path: Path) -> None:
    folder = written(tmp_path / "pair", BOTH).parent
    asked = ("-p", "I need a table", "--temp", "0", "--k", "3", "--max-tokens", "8", "--json")
    for name in (folder, folder / pairfile.NAME):
        assert '"model"' in run("chat", name, *asked).stdout
    assert '"model"' not in run("chat", folder, "--draft", "none", *asked).stdout
    (tmp_path / "prompts.jsonl").write_text(PROMPTS)
    done = run("check", folder, "--prompts", tmp_path / "prompts.jsonl", "--k", "3", "--max-tokens", "8")
    assert "2 of 2 prompts" in done.stdout, done.stderr
    assert resolve(folder, "auto", Job()) == Files(DEMO.target, DEMO.draft)
    assert resolve(str(folder), "none", Job()) == Files(DEMO.target, None)
    assert resolve(folder, "other.gguf", Job()) == Files(DEMO.target, Path("other.gguf"))
    done = run("models", "pair", folder)
    assert str(DEMO.draft) in done.stdout, done.stderr
    assert str(DEMO.draft) in run("models", "show", folder).stdout
    written(folder, {**BOTH, "measured": {"acceptance": [0.61, 0.9]}, "date": "2026-01-01"})
    assert "acceptance by depth: 61% 90% (measured 2026-01-01)\n" in run("models", "show", folder).stdout
    written(folder, {**BOTH, "draft": "gone"})
    assert "names 'gone' as its draft" in refused(run("chat", folder, "-p", "x"))
    assert "no pair file at org/pair.json" in refused(run("chat", "org/pair.json", "-p", "x"))


def test_a_pairs_folder_is_no_draft(tmp_path: Path) -> None:
    """Beside an ONNX model, under the name by which a draft is found."""
    for name in ("model", "draft/target", "draft/draft"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "model.onnx").touch()
    written(tmp_path / "draft", {"target": "target", "draft": "draft"})
    assert models.with_draft(tmp_path / "model") == (tmp_path / "model", None)
    assert models.with_draft(tmp_path / "draft") == (tmp_path / "draft" / "target", tmp_path / "draft" / "draft")


# --- what a draft is worth


def test_worth_is_measured_by_depth() -> None:
    """A draft that is wrong now and then: counted by hand from its rounds."""
    rule = ngram_rule(Bytes.size, seed=3)
    draft = blend(rule, ngram_rule(Bytes.size, seed=9), 0.2)
    speculation = Speculation(("model",), 4)
    runtime = edgespec.assemble(ToyModel(rule), ToyModel(draft), device=Device(context=256), speculation=speculation)
    prompts = [[1, 2, 3], [4, 5]]
    with runtime:
        rounds = [
            event.round
            for prompt in prompts
            for event in runtime.complete(prompt, Sampling(), max_tokens=60)
            if isinstance(event, edgespec.Text)
        ]
        first, last = weigh(runtime, prompts, Sampling(), 60)
    tried = [sum(len(r.path) >= depth and len(r.draft) > depth for r in rounds) for depth in range(4)]
    accepted = [sum(len(r.path) > depth for r in rounds) for depth in range(4)]
    assert last.depths == tuple(zip(tried, accepted, strict=True))
    assert first.tokens < last.tokens == sum(len(r.tokens) for r in rounds)
    assert 0 < last.acceptance[0] == accepted[0] / tried[0] < 1


def test_a_cancelled_answer_is_no_measurement() -> None:
    rule = ngram_rule(Bytes.size, seed=3)
    with edgespec.assemble(ToyModel(rule), device=Device(context=256)) as runtime:
        steps = weigh(runtime, [[1], [2]], Sampling(), 20)
        next(steps)
        complete = runtime.complete

        def cancelled(*given: Any, **options: Any) -> Any:
            stream = complete(*given, **options)
            runtime.cancel()
            return stream

        runtime.complete = cancelled  # type: ignore[method-assign]
        with pytest.raises(Interrupted):
            next(steps)


def test_what_follows_from_worth() -> None:
    worth = Worth(((100, 50), (50, 40), (19, 1)), (1.0, 1.1, 1.2, 1.3), 0.01)
    assert worth.acceptance == (0.5, 0.8), "19 tries say nothing"
    assert worth.best.k == 3
    assert worth.best.speedup == pytest.approx((1 + 0.5 + 0.4 + 0.32) / 1.33)
    assert worth.length(2) == pytest.approx(1.9)
    assert worth.ceiling.k == 3
    few = Worth(((19, 19),), (1.0, 1.1), 0.0)
    assert (few.acceptance, few.known) == ((), False), "19 of 19 say nothing"
    assert worth.known
    assert not Worth(((100, 50),), (1.0, 0.1), 0.0).known, "prices that cannot be true"
    nothing = Worth((), (1.0, 1.1), 0.0)
    assert (nothing.acceptance, nothing.best.k, nothing.length(1)) == ((), 0, 1.0)


# --- making one


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkpoints.llama(tmp_path_factory.mktemp("pairs") / "source")


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    file = tmp_path / "prompts.jsonl"
    file.write_text(PROMPTS)
    return file


@pytest.fixture
def make(source: Path, tmp_path: Path, prompts: Path) -> Callable[..., bool]:
    """`convert --pair` of a checkpoint with itself, unless told otherwise."""

    def made(
        *, target: Path = source, draft: Path = source, fmt: str = "gguf", force: bool = False, **given: Any
    ) -> bool:
        asked = Pairing((target, draft), given.get("draft_quant"), given.get("prompts", prompts), 12, True, False)
        return convert_pair.make(asked, given.get("out", tmp_path / "pair"), fmt, given.get("quant"), force=force)

    return made


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize(("fmt", "files"), [("gguf", ["target.gguf", "draft.gguf"]), ("onnx", ["target", "draft"])])
def test_a_pair_is_made_and_opens(
    fmt: str, files: list[str], source: Path, prompts: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """A model that drafts for itself is always right."""
    out = tmp_path / "pair"
    options = ("--to", fmt, "--prompts", prompts, "--max-tokens", "120", "--out", out)
    done = run("convert", "--pair", source, source, *options)
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
    assert kept["made_of"]["target"] == {"source": str(source), "commit": "", "quantization": quantization}
    assert set(kept["measured"]["acceptance"]) == {1.0}
    assert kept["measured"]["prompts"] == str(prompts)
    chat = run("chat", out, "-p", "I need", "--temp", "0", "--k", "2", "--max-tokens", "6", "--json")
    assert '"model"' in chat.stdout, chat.stderr
    assert "holds a pair" in refused(run("convert", "--pair", source, source, *options))


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
    make: Callable[..., bool], source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own, out = Path(shutil.copytree(source, tmp_path / "own")), tmp_path / "pair"
    assert make(target=own)
    before = {path.name: path.stat().st_mtime_ns for path in out.iterdir()}

    def changed() -> set[str]:
        now = {path.name: path.stat().st_mtime_ns for path in out.iterdir()}
        assert now.keys() == before.keys()
        return {name for name in now if now[name] != before[name]}

    assert make(target=own, force=True)
    assert changed() == {"pair.json"}
    assert capsys.readouterr().err.count("was made of the same files before and is kept") == 2
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
        patch.setattr(convert_pair, "_checked", interrupted)
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
        with pytest.raises(ConversionError, match="another conversion is at work"):
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
        with pytest.raises(ConversionError, match="holds notes, which is of no pair"):
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
    with pytest.raises(ConversionError, match=r"no room for .*target\.gguf"):
        make()
    assert not (tmp_path / "pair").exists()


def test_what_can_be_refused_is_refused_before_the_work(
    make: Callable[..., bool], tmp_path: Path, prompts: Path
) -> None:
    with pytest.raises(ConversionError, match="nowhere is not a folder"):
        make(target=tmp_path / "nowhere")
    with pytest.raises(ConversionError, match="nowhere is not a folder"):
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
    assert says in refused(run("convert", *arguments, "--out", tmp_path / "pair"))
    assert names(tmp_path) == []


def test_names_on_the_hub_are_fetched_and_their_commit_is_noted(source: Path, prompts: Path, tmp_path: Path) -> None:
    files = {path.name: path.read_bytes() for path in source.iterdir()}
    with serving({"org/target": files, "org/draft": files}) as hub:
        env = {"HF_ENDPOINT": hub.endpoint, "HF_HOME": str(tmp_path / "hf"), "HF_HUB_OFFLINE": "0"}
        options = ("--prompts", prompts, "--max-tokens", "4", "--out", tmp_path / "pair")
        done = run("convert", "--pair", "org/target", "org/draft", *options, env=env)
    assert done.returncode == 0, done.stderr
    kept = json.loads((tmp_path / "pair" / "pair.json").read_text())
    for role in pair.ROLES:
        assert kept["made_of"][role] == {"source": f"org/{role}", "commit": COMMIT, "quantization": "q8_0"}


def test_a_name_on_the_hub_without_a_hub(source: Path, tmp_path: Path) -> None:
    env = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "hf")}
    done = run("convert", "--pair", source, "org/draft", "--out", tmp_path / "pair", env=env)
    assert "org/draft" in refused(done)
    assert not (tmp_path / "pair").exists()


# --- what is said of it


def likeness(source: Path, **draft: Any) -> Likeness:
    found = Likeness.of(Checkpoint.open(source), Checkpoint.open(source))
    return replace(found, draft=replace(found.draft, **draft))


def test_what_checkpoints_say_of_each_other(source: Path) -> None:
    def said(**draft: Any) -> list[str]:
        return list(Findings(likeness(source, **draft), ()).beforehand())

    assert "the draft has none" in said(template=None)[1]
    assert "they differ" in said(template="x")[1]
    assert "special tokens: " in said(ends=frozenset({"<end>"}))[1]
    assert "'<end>' of the draft" in said(ends=frozenset({"<end>"}))[1]
    assert said(parameters=1)[-1].endswith("the draft has 0% of the target's")


@pytest.mark.parametrize(
    ("worth", "says", "advises"),
    [
        (Worth(((100, 90),), (1.0, 1.1), 0.1), "1.58x at K = 1, mean accepted length 1.90", ""),
        (Worth(((100, 10),), (1.0, 1.1), 0.1), "none, plain decoding is fastest", "right too seldom: 10% of its first"),
        (Worth(((100, 90),), (1.0, 1.4), 0.6), "none, plain decoding", "Even a draft that is always right would bring"),
        (Worth(((100, 90),), (1.0, 1.6), 0.0), "1.19x at K = 1", "over two tokens takes 1.6 plain steps: --to onnx"),
        (Worth(((100, 90),), (1.0, 1.1), 0.3), "a guess costs 0.30 of a plain step", "is dear for this target"),
    ],
)
def test_the_verdict_and_what_to_do_better(source: Path, worth: Worth, says: str, advises: str) -> None:
    made = [Made(role, "org/x", "abc", source / "config.json", "q8_0") for role in pair.ROLES]
    found = Findings(likeness(source), made, worth, Report(0))
    lines = lines_without_memory(found)
    assert any(says in line for line in lines), lines
    advice = lines[lines.index("memory") + 1 : -1]
    assert len(advice) == bool(advises) + (worth.step == 0.6)
    assert not advises or advises in advice[0]


@pytest.mark.parametrize(
    ("worth", "acceptance", "why"),
    [
        (Worth(((19, 19), (3, 3)), (1.0, 1.1, 1.2), 0.1), "drafts were judged 19 times", "too few drafts were judged"),
        (Worth(((200, 150),), (1.0, 1e-3, 1e-3), 0.1), "75% (", "the prices measured cannot be true"),
    ],
)
def test_what_is_not_known_of_a_pair_is_not_claimed(worth: Worth, acceptance: str, why: str, source: Path) -> None:
    made = [Made(role, "org/x", "abc", source / "config.json", "q8_0") for role in pair.ROLES]
    found = Findings(likeness(source), made, worth, Report(0))
    lines = lines_without_memory(found)
    assert any(line.startswith("acceptance by depth: ") and acceptance in line for line in lines)
    assert f"speedup expected at the prices of this machine: not known, for {why}" in lines
    assert not any("seldom" in line or "x at K" in line for line in lines)
    assert not {"k", "speedup", "mean_accepted_length"} & found.as_pair()["measured"].keys()


def test_another_word_is_no_pass(source: Path) -> None:
    """Nothing that was drafted can have changed one."""

    def passed(*verdicts: Verdict) -> bool:
        report = Report(len(verdicts))
        for verdict in verdicts:
            report.add(verdict)
        return Findings(likeness(source), (), report=report).passed

    parted = Divergence(3, 1.0, 0.1, flips=False)
    assert passed(Verdict(9, 4, 2, None))
    assert not passed(Verdict(9, 4, 2, None), Verdict(9, 4, 2, parted))
    assert passed(Verdict(9, 0, 0, None))


def lines_without_memory(found: Findings) -> list[str]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Findings, "_memory", lambda _self: "memory")
        return list(found.lines())


def test_a_source_that_cannot_be_listed(tmp_path: Path) -> None:
    """A link to itself, say."""
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    found = conversion_cache.Again.of(tmp_path, tmp_path / "x.gguf", "gguf", "q8_0")
    assert not found.is_there
