"""The command line as a user meets it: as a subprocess, through a pipe, and under a terminal."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from edgespec import models
from edgespec.backends.llama_library import bindings

from . import checkpoints
from .respelt import respelt

EDGESPEC = str(Path(sys.executable).parent / "edgespec")
PROMPT = "I need a table for two in Oakland tonight."
DEMO = models.demo()
GPU = bool(bindings().llama_supports_gpu_offload())
ANSI = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")

pexpect = pytest.importorskip("pexpect", reason="pseudo-terminals need a Unix")
unix = pytest.mark.skipif(sys.platform == "win32", reason="pseudo-terminals need a Unix")


def run(
    *arguments: str | Path, stdin: str | None = None, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [EDGESPEC, *map(str, arguments)],
        input=stdin,
        stdin=subprocess.DEVNULL if stdin is None else None,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env={**os.environ, **(env or {})},
    )


def events(*arguments: str | Path) -> list[dict[str, Any]]:
    done = run("chat", *arguments, "--json")
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def refused(done: subprocess.CompletedProcess[str]) -> str:
    """The one line that a failed run leaves on stderr."""
    assert done.returncode not in (0, -6, -11), done
    assert "Traceback" not in done.stderr + done.stdout
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith("Error: ")
    return lines[0]


def test_json_events() -> None:
    started, *texts, finished = events("-p", PROMPT, "--temp", "0")
    assert started == {"event": "started", "prompt": started["prompt"], "cached": 0, "dropped": 0}
    assert started["prompt"] > 10
    stats = finished["stats"]
    assert finished["reason"] == "end"
    assert [t["event"] for t in texts] == ["text"] * stats["rounds"]
    assert sum(len(t["tokens"]) for t in texts) == stats["tokens"]
    assert sum(t["drafted"] for t in texts) == stats["drafted"]
    assert sum(t["accepted"] for t in texts) == stats["accepted"] > 0
    assert all(t["accepted"] <= t["drafted"] for t in texts)
    assert "".join(t["text"] for t in texts).strip()
    assert stats["plain_tokens_per_second"] > 0
    assert stats["speedup"] is None, "of so few tokens"


def test_same_seed_same_text_whatever_is_drafted() -> None:
    def text(*options: str) -> str:
        return "".join(e.get("text", "") for e in events("-p", PROMPT, "--temp", "0.8", "--seed", "11", *options))

    plain = text("--k", "0")
    assert plain
    assert text("--k", "1") == text("--k", "8") == plain
    # What is drafted here depends on the machine, and trees move logits a little: exactly the same is for --exact.
    assert text("--exact", "4") == text("--exact", "4", "--k", "0")


def test_a_pipe_is_a_prompt() -> None:
    done = run("chat", "--temp", "0", stdin=PROMPT + "\n")
    assert done.returncode == 0
    assert done.stdout.strip()
    assert "demo pair" in done.stderr


def prompt_of(*arguments: str | Path, stdin: str | bytes | None = None) -> int:
    """Tokens of the prompt that these make."""
    command = [EDGESPEC, "chat", *map(str, arguments), "--temp", "0", "--max-tokens", "1", "--json"]
    given = stdin.encode() if isinstance(stdin, str) else stdin
    done = subprocess.run(command, input=given or b"", capture_output=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    return int(json.loads(done.stdout.splitlines()[0])["prompt"])


def test_standard_input_and_files_come_before_the_prompt(tmp_path: Path) -> None:
    """`echo CONTEXT | edgespec chat -p QUESTION` dropped the context."""
    one, two = tmp_path / "one.txt", tmp_path / "two.txt"
    one.write_bytes("\ufeffThe inn has ten rooms.\n".encode())
    two.write_text("It is in Oakland.\n")
    whole = prompt_of("-p", "The inn has ten rooms.\n\nIt is in Oakland.\n\nThe cook is Ann.\n\nHow many rooms?")
    assert prompt_of("-f", one, "-f", two, "-p", "How many rooms?", stdin="The cook is Ann.\n") == whole
    assert whole > prompt_of("-p", "How many rooms?") + 12
    assert prompt_of("-p", "How many rooms?", stdin="\n") == prompt_of("-p", "How many rooms?")
    assert prompt_of("-f", one) == prompt_of("-p", "The inn has ten rooms.\n")


@unix
def test_a_closed_standard_input_is_no_context() -> None:
    line = f"{EDGESPEC} chat -p '{PROMPT}' --temp 0 --max-tokens 8"
    without, closed = (
        subprocess.run(["sh", "-c", f"{line} {end}"], capture_output=True, text=True, check=True, timeout=60).stdout
        for end in ("</dev/null", "<&-")
    )
    assert without == closed != ""


def test_files_that_are_no_text_are_one_line(tmp_path: Path) -> None:
    binary, latin, large, empty = (tmp_path / name for name in ("binary", "latin", "large", "empty"))
    binary.write_bytes(b"text\0and more")
    latin.write_bytes("grün".encode("latin-1"))
    large.write_bytes(b"x" * ((4 << 20) + 1))
    empty.touch()
    for path, says in (
        (binary, "is binary, not text"),
        (latin, "is not text in UTF-8 (byte 2)"),
        (large, "has more than 4 MB"),
        (tmp_path, "cannot be read"),
        (tmp_path / "missing", "missing cannot be read: No such file"),
    ):
        assert says in refused(run("chat", "-f", path, "-p", "x"))
        assert says in refused(run("chat", "--system-file", path, "-p", "x"))
        if path.is_file():
            with path.open("rb") as file:
                done = subprocess.run(
                    [EDGESPEC, "chat", "-p", "x"], stdin=file, capture_output=True, text=True, check=False, timeout=60
                )
            assert f"standard input {says}" in refused(done)
    assert "nothing was asked" in refused(run("chat", "-f", empty))
    assert "--system and --system-file" in refused(run("chat", "-p", "x", "--system", "a", "--system-file", empty))


@unix
def test_a_pipe_in_place_of_a_text_is_one_line(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for option in ("-f", "--system-file"):
        for path in (tmp_path / "pipe", "/dev/zero"):
            assert "it is a pipe or a device, not a file; give" in refused(run("chat", "-p", "x", option, path))
    done = subprocess.run([EDGESPEC, "chat", "-p", b"\xff"], capture_output=True, text=True, check=False, timeout=60)
    assert "-p is not text in UTF-8" in refused(done)


def test_the_system_message_may_be_a_file(tmp_path: Path) -> None:
    file = tmp_path / "system.txt"
    file.write_text("Be brief and kind.")
    assert prompt_of("-p", "x", "--system-file", file) == prompt_of("-p", "x", "--system", "Be brief and kind.")


def test_an_answer_ends_before_a_stop_text() -> None:
    asked = ("-p", PROMPT, "--temp", "0", "--max-tokens", "30")
    whole = run("chat", *asked).stdout
    assert "time" in whole
    cut = run("chat", *asked, "--stop", "nowhere in it", "--stop", "time")
    assert cut.stdout == whole.partition("time")[0] + "\n"
    said = events(*asked, "--stop", "time")
    assert said[-1]["reason"] == "stop"
    assert "".join(e.get("text", "") for e in said) == whole.partition("time")[0]


@pytest.mark.parametrize(
    ("arguments", "kind", "status"),
    [
        (["chat", "--json", "-p", "x", "--k", "many"], "OptionError", 1),
        (["chat", "missing.gguf", "--json", "-p", "x"], "ModelFileError", 1),
        (["chat", "--json", "-p", PROMPT * 20, "--ctx", "64"], "ContextOverflow", 1),
        (["chat", "--json"], "UsageError", 2),
        (["chat", "--json", "-p", "x", "--nonsense"], "UsageError", 2),
        (["tune", "missing.gguf", "--json"], "ModelFileError", 1),
        (["convert", "--pair", "a", "b", "--out", "c", "--to", "pickle", "--json"], "OptionError", 1),
    ],
)
def test_with_json_an_error_is_json_too(arguments: list[str], kind: str, status: int) -> None:
    done = run(*arguments)
    line = refused(done)
    assert done.returncode == status
    message = line.removeprefix("Error: ")
    assert json.loads(done.stdout) == {"event": "error", "kind": kind, "message": message, "status": status}


def test_show_drafts_without_colour() -> None:
    done = run("chat", "-p", PROMPT, "--temp", "0", "--k", "4", "--show-drafts", "--stats")
    assert "\x1b" not in done.stdout
    assert "[" in done.stdout
    shown = re.sub(r"\{-.*?-\}", "", done.stdout).replace("[", "").replace("]", "")
    assert shown == run("chat", "-p", PROMPT, "--temp", "0", "--k", "0").stdout, "marks must not change the text"
    assert re.search(r"[\d.]+ tokens/s", done.stderr)
    assert "mean accepted length" in done.stderr
    assert "drafts accepted: " in done.stderr
    assert "draft length K: " in done.stderr


def test_stats_say_why_drafts_are_as_long_as_they_are() -> None:
    done = run("chat", "-p", PROMPT, "--temp", "0", "--stats")
    why = (
        r"this machine checks \d+ tokens for the price of [\d.]+[;:] .*(right .*\d+% of the time|can pay)"
        r"|the prices of passes known here cannot be true"  # on a machine that was busy
    )
    assert any(re.match(why, line) for line in done.stderr.splitlines()), done.stderr


def test_draft_auto_takes_the_file_beside_the_model(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").symlink_to(DEMO.target)
    assert models.with_draft(tmp_path / "m.gguf").draft is None
    (tmp_path / "m.draft.gguf").symlink_to(DEMO.draft or "")
    drafters = {name for e in events(tmp_path / "m.gguf", "-p", PROMPT, "--k", "3") for name in e.get("drafters", ())}
    assert "model" in drafters


def test_a_draft_that_only_happens_to_lie_there_is_left_out(tmp_path: Path) -> None:
    """Found by its name it may be another model's."""
    source = checkpoints.llama(tmp_path / "source")
    assert run("convert", source, "--out", tmp_path / "draft.gguf").returncode == 0
    (tmp_path / "m.gguf").symlink_to(DEMO.target)
    done = run("chat", tmp_path / "m.gguf", "-p", PROMPT, "--temp", "0")
    assert done.returncode == 0
    assert done.stdout.strip()
    assert "left out: target and draft have different vocabularies: token" in done.stderr
    assert THROUGH_TEXT not in done.stderr


THROUGH_TEXT = "The draft model has a vocabulary of its own, so it drafts through text."


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo's draft model in another vocabulary."""
    source = Path(__file__).parents[2] / "shared" / "models" / "draft"
    if not source.is_dir():
        pytest.skip("the checkpoint of the demo's draft model is not beside the repository")
    return respelt(source, tmp_path_factory.mktemp("other") / "draft", merges=1500)


def prompts_in(folder: Path) -> Path:
    """A file of two prompts."""
    file = folder / "prompts.jsonl"
    file.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in (PROMPT, "I need a train to 你好 😀")))
    return file


def test_a_draft_of_another_vocabulary_drafts_through_text(other: Path) -> None:
    asked = ("-p", PROMPT, "--temp", "0")
    done = run("chat", "--draft", other, *asked, "--k", "3", "--show-drafts", "--stats")
    assert done.returncode == 0, done.stderr
    assert THROUGH_TEXT in done.stderr.splitlines()
    assert re.search(r"cross-vocabulary \d+% \(\d+ of \d+\)", done.stderr), done.stderr
    said = events("--draft", other, *asked, "--k", "3", "--drafter", "cross-vocabulary")
    assert "".join(e.get("text", "") for e in said) == "".join(
        e.get("text", "") for e in events("--draft", "none", "--k", "0", *asked)
    )
    assert {name for e in said for name in e.get("drafters", ())} == {"cross-vocabulary"}
    assert 0 < said[-1]["stats"]["accepted"] < said[-1]["stats"]["drafted"]
    assert THROUGH_TEXT not in run("chat", *asked, "--max-tokens", "2").stderr
    wrong = refused(run("chat", "--draft", other, *asked, "--drafter", "model"))
    assert "no drafter 'model', only lookup, cross-vocabulary" in wrong


def test_check_passes_with_a_draft_of_another_vocabulary(other: Path, tmp_path: Path) -> None:
    options = ("--drafter", "cross-vocabulary", "--k", "3", "--max-tokens", "40", "--prompts", prompts_in(tmp_path))
    done = run("check", "--draft", other, *options)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 of 2 prompts" in done.stdout
    assert "nothing was drafted" not in done.stdout


def test_found_beside_the_model_a_draft_of_another_vocabulary_is_left_out_with_a_hint(
    other: Path, tmp_path: Path
) -> None:
    (tmp_path / "m.gguf").symlink_to(DEMO.target)
    (tmp_path / "m.draft.gguf").symlink_to(other)
    done = run("chat", tmp_path / "m.gguf", "-p", PROMPT, "--temp", "0", "--max-tokens", "8")
    assert done.returncode == 0
    assert f"{tmp_path / 'm.draft.gguf'}, found beside the model, is left out: " in done.stderr
    assert "with --draft to let it draft through text, or take --draft none" in done.stderr
    assert THROUGH_TEXT not in done.stderr


# --- files that are none


@unix
def test_a_pipe_or_device_in_place_of_a_file_is_one_line(tmp_path: Path) -> None:
    """A pipe that nobody writes to was waited for, and /dev/zero read until there was no memory."""

    def pipe(path: Path) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        os.mkfifo(path)
        return path

    says = "it is a pipe or a device, not a file"
    suite = pipe(tmp_path / "suite.jsonl")
    assert says in refused(run("check", "--prompts", "/dev/zero"))
    assert says in refused(run("bench", "--suite", suite, "--out", tmp_path / "bench"))
    assert says in refused(run("chat", pipe(tmp_path / "pair.json"), "-p", "x"))
    assert says in refused(run("convert", pipe(tmp_path / "a" / "config.json").parent, "--out", tmp_path / "a.gguf"))
    source = checkpoints.llama(tmp_path / "source")
    (source / "tokenizer.json").unlink()
    pipe(source / "tokenizer.json")
    assert says in refused(run("convert", source, "--out", tmp_path / "b.gguf"))
    own = pipe(tmp_path / "config" / "edgespec" / "models.toml")
    assert says in refused(run("models", "list", env={"XDG_CONFIG_HOME": str(own.parents[1])}))


# --- exactness, memory


def test_check_exact_is_identical(tmp_path: Path) -> None:
    done = run(
        "check", "--exact", "4", "--k", "3", "--max-tokens", "48", "--temp", "0", "--prompts", prompts_in(tmp_path)
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == "2 of 2 prompts: 2 identical, 0 near ties, 0 different"
    assert "nothing was drafted" not in done.stdout


def test_what_is_remembered_is_looked_up_until_it_is_forgotten(own_cache: Path) -> None:
    memory = own_cache / "memory"

    def accepted(*options: str) -> int:
        *said, finished = events("-p", PROMPT, "--temp", "0", "--draft", "none", "--k", "4", *options)
        texts.append("".join(e.get("text", "") for e in said))
        return int(finished["stats"]["accepted"])

    texts: list[str] = []
    nothing = run("forget")
    assert (nothing.returncode, nothing.stdout, nothing.stderr) == (0, "", "nothing was kept\n")
    alone = accepted()
    assert not memory.exists(), "nothing is kept that was not asked for"
    assert accepted("--remember") == alone
    assert len(list(memory.iterdir())) == 1
    assert accepted("--remember") > alone + 3
    assert accepted() == alone, "what is kept is used only where that is asked for"
    done = run("forget")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "1 file deleted\n")
    assert list(memory.iterdir()) == []
    assert accepted("--remember") == alone
    assert len(set(texts)) == 1, "it changes no word"


def test_what_cannot_be_forgotten_is_one_line(own_cache: Path) -> None:
    (own_cache / "memory" / "a.json").mkdir(parents=True)
    assert "a.json cannot be deleted" in refused(run("forget"))


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["missing.gguf"], "no model at missing.gguf"),
        (["--draft", "missing.gguf"], "no model at missing.gguf"),
        (["--k", "-1"], "k is -1"),
        (["--k", "many"], "--k is 'many'"),
        (["--drafter", "medusa"], "no drafter 'medusa'; there are lookup, model, cross-vocabulary"),
        (["missing.gguf", "--drafter", "medusa"], "no drafter 'medusa'"),  # before anything is fetched
        (["--drafter", "model", "--draft", "none"], "no drafter 'model', only lookup: 'model' needs a draft model"),
        (["--verifier", "hope"], "no verifier 'hope'; there are match, rejection, block"),
        (["--temp", "-1"], "temperature"),
        (["--ctx", "-5"], "context is -5"),
        (["--threads", "100000"], "threads is 100000"),
        (["--k", "1000"], "k is 1000"),
        (["--temp", "nan"], "temperature is nan"),
        (["--gpu-layers", "5"], "gpu_layers is 5") if not GPU else (["--gpu-layers", "-7"], "gpu_layers is -7"),
        (["--threads", "x"], "threads"),
        (["--draft", str(DEMO.target)], f"--draft names the target itself, {DEMO.target}; name a smaller model"),
        (["--provider", "cuda"], "--provider cuda is for ONNX models, and llama.cpp runs"),
        (["--exact", "3"], "exact is 3; it must be one of 0, 2, 4, 8"),
        (["--exact", "4", "--k", "-1"], "k is -1"),
        (["--max-tokens", "0"], "max_tokens is 0"),
        (["--nonsense"], "nonsense"),
    ],
)
def test_wrong_options_are_one_line(arguments: list[str], says: str) -> None:
    assert says in refused(run("chat", "-p", "x", *arguments))


def test_bad_model_files_are_one_line(tmp_path: Path) -> None:
    half, text = tmp_path / "half.gguf", tmp_path / "text.gguf"
    half.write_bytes(DEMO.target.read_bytes()[: DEMO.target.stat().st_size // 2])
    text.write_text("hello")
    assert "half.gguf is truncated" in refused(run("chat", half, "-p", "x"))
    assert "not a GGUF file" in refused(run("chat", text, "-p", "x"))
    assert "holds several models (half.gguf, text.gguf)" in refused(run("chat", tmp_path, "-p", "x"))
    (tmp_path / "empty").mkdir()
    assert "not a model file" in refused(run("chat", tmp_path / "empty", "-p", "x"))


def test_a_prompt_longer_than_the_context_is_one_line() -> None:
    assert "the context holds 64" in refused(run("chat", "--ctx", "64", "-p", PROMPT * 20))


@pytest.mark.parametrize("arguments", [[], ["-p", ""], ["-p", "   "], ["--json"]])
def test_an_empty_prompt_is_refused(arguments: list[str]) -> None:
    assert "nothing was asked" in refused(run("chat", *arguments, stdin="\n"))


@unix
@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", ">/dev/full", "--json >/dev/full", "--stats 2>/dev/full"])
def test_streams_that_are_closed_or_full_are_no_traceback(closed: str) -> None:
    done = subprocess.run(
        ["sh", "-c", f"{EDGESPEC} chat -p hello --temp 0 {closed}"], capture_output=True, text=True, check=False
    )
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr
    if "full" in closed and "2>" not in closed:
        assert done.returncode == 1
        assert "No space left" in done.stderr


@unix
def test_names_that_the_system_refuses_are_one_line(tmp_path: Path) -> None:
    assert "cannot be opened" in refused(run("chat", "x" * 300 + ".gguf", "-p", "x"))
    assert refused(run("chat", "", "-p", "x"))
    assert "cannot be written" in refused(run("convert", tmp_path, "--out", "x" * 300 + ".gguf"))
    assert "too long" in refused(run("models", "show", "x" * 300))
    assert "give a shorter name" in refused(run("bench", "models/demo/target.gguf", "--out", tmp_path / ("x" * 300)))
    os.mkfifo(tmp_path / "pipe.gguf")
    assert "a pipe or a device" in refused(run("chat", tmp_path / "pipe.gguf", "-p", "x"))


@unix
def test_a_name_with_control_characters_does_not_reach_the_terminal(tmp_path: Path) -> None:
    model = tmp_path / os.fsdecode(b"\x1b]0;title\x07\xff.gguf")
    model.symlink_to(Path("models/demo/target.gguf").absolute())
    shown = run("models", "show", model)
    assert shown.returncode == 0, shown.stderr
    assert not {"\x1b", "\x07"} & set(shown.stdout)


@unix
def test_force_never_replaces_a_device(tmp_path: Path) -> None:
    """As root it once replaced /dev/null."""
    (tmp_path / "device.gguf").symlink_to("/dev/null")
    source = checkpoints.llama(tmp_path / "source")
    assert "a folder or a device" in refused(run("convert", source, "--out", tmp_path / "device.gguf", "--force"))
    assert (tmp_path / "device.gguf").is_symlink()


def test_without_a_command_the_help_is_shown() -> None:
    done = run()
    assert "Commands:\n" in done.stdout + done.stderr


def test_convert_to_a_folder(tmp_path: Path) -> None:
    source, out = checkpoints.llama(tmp_path / "source"), tmp_path / "model"
    done = run("convert", source, "--to", "onnx", "--out", out)
    assert done.returncode == 0, done.stderr
    size = sum(path.stat().st_size for path in out.iterdir())
    assert done.stderr.splitlines()[-1] == f"{out}: {size / 1e6:.1f} MB, int8"
    assert "exists" in refused(run("convert", source, "--to", "onnx", "--out", out))
    assert run("convert", source, "--to", "onnx", "--quant", "int4", "--out", out, "--force").returncode == 0
    assert "known: fp32" in refused(run("convert", source, "--to", "onnx", "--quant", "q9", "--out", out))


def test_convert_refuses_in_one_line(tmp_path: Path) -> None:
    out = tmp_path / "out.gguf"
    assert "must end in .gguf" in refused(run("convert", tmp_path, "--out", tmp_path / "out.bin"))
    assert "q8_0" in refused(run("convert", tmp_path, "--quant", "q9", "--out", out))
    assert "gguf" in refused(run("convert", tmp_path, "--to", "pickle", "--out", out))
    assert refused(run("convert", tmp_path / "nowhere", "--out", out))
    assert not out.exists()
    assert list(tmp_path.iterdir()) == []


def test_check_compares_and_says_so(tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.jsonl"
    chat = {"messages": [{"role": "user", "content": PROMPT}]}
    prompts.write_text(json.dumps(chat) + "\n" + json.dumps({"prompt": "Once upon a time"}) + "\n")
    done = run("check", "--prompts", prompts, "--k", "4", "--max-tokens", "32", "--temp", "0.8")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 of 2 prompts" in done.stdout


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("", "holds no prompt"),
        ("not json\n", "line 1 is not JSON"),
        ('{"prompt": "fine"}\n{"text": "x"}\n', "line 2 has neither"),
        ('{"messages": [{"role": "user"}]}\n', "line 1"),
        ('{"messages": []}\n', "line 1 has neither"),
        ("[1]\n", "line 1 has neither"),
        ("[" * 100_000 + "\n", "line 1 is not JSON"),
        (json.dumps({"prompt": "word " * 5000}) + "\n", "line 1 has"),
    ],
)
def test_check_names_the_broken_line(tmp_path: Path, content: str, says: str) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text(content)
    assert says in refused(run("check", "--prompts", file))


def test_a_checkpoint_is_converted_once(tmp_path: Path) -> None:
    """Into the cache, and again where its files have changed; a draft just so."""
    folder = checkpoints.llama(tmp_path / "mine", tokenizer="qwen2")
    small = checkpoints.llama(tmp_path / "small", tokenizer="qwen2", layers=1)
    env = {"EDGESPEC_CACHE": str(tmp_path / "cache")}

    def said() -> str:
        done = run("chat", folder, "--draft", small, "-p", "Hello", "--max-tokens", "4", env=env)
        assert done.returncode == 0, done.stderr
        return done.stderr

    first = said()
    assert f"{folder} is a checkpoint, so it is converted to q8_0" in first
    assert f"{small} is a checkpoint" in first
    made = {path: path.read_bytes() for path in (tmp_path / "cache" / "converted").iterdir()}
    assert sorted(path.suffix for path in made) == [".gguf", ".gguf"]
    assert "is a checkpoint" not in said()
    for command in ("show", "pair"):
        done = run("models", command, folder, *[small] * (command == "pair"), env=env)
        assert done.returncode == 0, done.stderr
        assert "is a checkpoint" not in done.stderr
        assert "memory: weights" in done.stdout
    checkpoints.llama(folder, tokenizer="qwen2", seed=1)
    again = said()
    assert f"{folder} is a checkpoint" in again
    assert f"{small} is a checkpoint" not in again
    assert sum(path.read_bytes() != before for path, before in made.items()) == 1


def test_a_checkpoint_that_cannot_be_converted(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "model.safetensors").write_bytes(b"no")
    env = {"EDGESPEC_CACHE": str(tmp_path / "cache")}
    done = run("chat", tmp_path / "mine", "-p", "Hello", env=env)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("Error: ")
    assert "Traceback" not in done.stderr
    (tmp_path / "cache").rename(tmp_path / "gone")
    (tmp_path / "cache").touch()
    assert "EDGESPEC_CACHE moves it" in run("chat", tmp_path / "mine", "-p", "Hello", env=env).stderr


def test_check_that_checked_nothing_fails() -> None:
    """Identical output proves nothing where nothing was drafted."""
    done = run("check", "--k", "0", "--max-tokens", "4")
    assert done.returncode == 1
    assert "nothing was drafted" in done.stdout


def test_check_of_a_verifier_that_promises_no_text() -> None:
    assert "preserves the distribution" in refused(run("check", "--verifier", "rejection", "--temp", "0.8"))


def test_a_reader_that_leaves_is_no_traceback() -> None:
    process = subprocess.Popen(
        [EDGESPEC, "chat", "-p", PROMPT, "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    stderr = process.stderr.read()
    process.stderr.close()
    process.wait(timeout=60)
    assert "Traceback" not in stderr
    assert "Exception ignored" not in stderr


def spawn(tmp_path: Path, *arguments: str, **env: str) -> Any:
    """edgespec under a pseudo-terminal of 200 columns, with a home of its own."""
    return pexpect.spawn(
        EDGESPEC,
        list(arguments),
        env={
            **os.environ,
            "HOME": str(tmp_path),
            "XDG_STATE_HOME": str(tmp_path),
            "TERM": "xterm-256color",
            "PROMPT_TOOLKIT_NO_CPR": "1",
            **env,
        },
        dimensions=(50, 200),
        encoding="utf-8",
        timeout=30,
    )


def type_in(child: Any, line: str) -> None:
    """Type a line as a terminal sends it: Enter is a carriage return."""
    child.send(line + "\r")
    child.expect_exact("\x1b[?2004l")  # the line editor let go of the terminal


@unix
def test_a_conversation_at_a_terminal(tmp_path: Path) -> None:
    child = spawn(tmp_path, "chat", "--temp", "0", "--k", "3")
    child.expect("demo pair")
    child.expect(">\x08")  # the prompt, and the cursor behind it
    type_in(child, PROMPT)
    child.expect("What time")
    child.expect(">\x08")  # the prompt, and the cursor behind it
    type_in(child, "/stats")
    child.expect("mean accepted length")
    type_in(child, "/drafts")
    child.expect("accepted draft tokens")
    type_in(child, "Half past seven.")
    child.expect("\x1b\\[3[12]m")  # green or red
    type_in(child, "/nothing")
    child.expect("there is no command /nothing")
    type_in(child, "/help")
    child.expect("Alt-Enter")
    type_in(child, "/system Be brief.")
    child.expect("system message is set")
    type_in(child, "/reset")
    child.expect("forgotten")
    child.expect(">\x08")
    child.sendcontrol("d")
    child.expect(pexpect.EOF)
    child.close()
    assert child.exitstatus == 0
    history = Path(os.environ["EDGESPEC_CACHE"], "chat_history")
    assert PROMPT in history.read_text()
    assert history.stat().st_mode & 0o777 == 0o600


@unix
def test_ctrl_c_stops_the_answer_and_keeps_the_chat(tmp_path: Path) -> None:
    # At a high temperature with the end tokens banned by none, a long answer leaves time to interrupt it.
    child = spawn(tmp_path, "chat", "--temp", "30", "--top-k", "0", "--top-p", "1", "--min-p", "0", "--seed", "1")
    child.expect(">\x08")  # the prompt, and the cursor behind it
    type_in(child, PROMPT)
    child.expect(r"\w{3,} ")
    child.sendintr()
    child.expect("stopped")
    child.expect(">\x08")  # the prompt, and the cursor behind it
    type_in(child, "/stats")
    child.expect("tokens/s")
    type_in(child, "/exit")
    child.expect(pexpect.EOF)
    child.close()
    assert child.exitstatus == 0


@unix
def test_ctrl_c_of_one_shot_says_so(tmp_path: Path) -> None:
    child = spawn(
        tmp_path, "chat", "--temp", "30", "--top-k", "0", "--top-p", "1", "--min-p", "0", "--seed", "1", "-p", PROMPT
    )
    child.expect(r"\w{3,} ")
    child.sendintr()
    child.expect("Error: interrupted")
    child.expect(pexpect.EOF)
    child.close()
    assert child.exitstatus == 130


@unix
def test_multi_line_input(tmp_path: Path) -> None:
    child = spawn(tmp_path, "chat", "--temp", "0")
    child.expect(">\x08")  # the prompt, and the cursor behind it
    child.send("I need a table\x1b\rfor two.\r")
    child.expect_exact("\x1b[?2004l")
    child.expect(">\x08")
    child.sendcontrol("d")
    child.expect(pexpect.EOF)
    child.close()
    assert "for two." in Path(os.environ["EDGESPEC_CACHE"], "chat_history").read_text()


@unix
def test_no_color_is_honoured(tmp_path: Path) -> None:
    child = spawn(tmp_path, "chat", "-p", PROMPT, "--k", "4", "--temp", "0", "--show-drafts", NO_COLOR="1")
    child.expect(pexpect.EOF)
    child.close()
    shown = child.before or ""
    assert "\x1b[3" not in shown
    assert "[" in ANSI.sub("", shown)


# --- the terminal

#: A long answer.
ANYTHING = ("--threads", "1", "--temp", "30", "--top-k", "0", "--top-p", "1", "--min-p", "0", "--seed", "1")


@unix
def test_what_is_typed_during_an_answer_is_kept_for_the_next_prompt(tmp_path: Path) -> None:
    """It was echoed into the answer."""
    child = spawn(tmp_path, "chat", *ANYTHING, "--max-tokens", "60")
    child.expect(">\x08")
    type_in(child, PROMPT)
    child.expect(r"\w{3,} ")
    child.send("zqzqz")
    child.expect(">\x08")
    assert "zqzqz" not in child.before
    child.expect("zqzqz")  # at the next prompt
    child.sendcontrol("c")
    child.sendcontrol("d")
    child.expect(pexpect.EOF)


def shell(tmp_path: Path) -> Any:
    """A shell with job control that leaves the terminal's modes alone, in which edgespec can be suspended."""
    child = pexpect.spawn(
        "sh",
        ["-i", "-m"],
        env={
            **os.environ,
            "HOME": str(tmp_path),
            "TERM": "xterm-256color",
            "PROMPT_TOOLKIT_NO_CPR": "1",
            "PS1": "\\$:",
        },
        dimensions=(50, 200),
        encoding="utf-8",
        timeout=30,
    )
    child.expect("\\$:")
    return child


def modes(child: Any) -> set[str]:
    child.sendline("stty -a; echo E''ND")
    child.expect("END\r")
    return set(child.before.split()) & {"echo", "-echo", "icanon", "-icanon", "isig", "-isig", "icrnl", "-icrnl"}


@unix
def test_ctrl_z_gives_the_terminal_back_and_goes_on(tmp_path: Path) -> None:
    child = shell(tmp_path)
    before = modes(child)
    assert "echo" in before
    child.sendline(f"{EDGESPEC} chat {' '.join(ANYTHING)} --max-tokens 80 --no-history")
    child.expect(">\x08")
    child.sendcontrol("z")  # at the prompt
    child.expect("\\$:")
    assert modes(child) == before
    child.sendline("fg")
    child.expect(">\x08")
    child.send(PROMPT + "\r")
    child.expect(r"\w{3,} ")
    child.sendcontrol("z")  # during the answer
    child.expect("\\$:")
    assert modes(child) == before
    child.sendline("fg")
    child.expect(r"\w{3,} ")
    child.send("zqzqz")
    child.expect(">\x08")
    assert "zqzqz" not in child.before, "what is typed is not echoed after it went on either"
    child.expect("zqzqz")
    child.sendcontrol("c")
    child.sendcontrol("d")
    child.expect("\\$:")
    assert modes(child) == before
    child.sendline("exit")
    child.expect(pexpect.EOF)


@unix
def test_lines_break_between_words() -> None:
    options = ("chat", "-p", PROMPT, "--temp", "0", "--max-tokens", "24", "--k", "0", "--threads", "1")
    whole = run(*options).stdout
    command = f"exec {EDGESPEC} {shlex.join(options)} 2>/dev/null"
    child = pexpect.spawn("sh", ["-c", command], dimensions=(50, 20), encoding="utf-8", timeout=60)
    child.expect(pexpect.EOF)
    lines = child.before.replace("\r\n", "\n").splitlines()
    assert " ".join(lines).split() == whole.split()
    assert len(lines) > 1
    assert max(map(len, lines)) <= 20


@unix
def test_no_history_keeps_nothing(tmp_path: Path, own_cache: Path) -> None:
    child = spawn(tmp_path, "chat", "--no-history", EDGESPEC_CACHE=str(own_cache))
    child.expect(">\x08")
    assert "what you type" not in child.before
    type_in(child, "/stats")
    child.expect("no answer yet")
    child.expect(">\x08")
    child.sendcontrol("d")
    child.expect(pexpect.EOF)
    assert not list(own_cache.rglob("chat_history*"))
    assert not list(tmp_path.rglob("chat_history*"))


@unix
def test_what_was_typed_is_told_and_forgotten(tmp_path: Path, own_cache: Path) -> None:
    child = spawn(tmp_path, "chat", EDGESPEC_CACHE=str(own_cache))
    child.expect("what you type is kept in .*chat_history until `edgespec forget`; --no-history keeps nothing")
    child.expect(">\x08")
    type_in(child, "/stats")
    child.expect(">\x08")
    child.sendcontrol("d")
    child.expect(pexpect.EOF)
    assert "/stats" in (own_cache / "chat_history").read_text()
    assert run("forget").stderr == "1 file deleted\n"
    assert not (own_cache / "chat_history").exists()
    assert run("forget").stderr == "nothing was kept\n"
