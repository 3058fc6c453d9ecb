"""Errors of the command line: one line on stderr, an exit status, and JSON where it was asked for."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from edgespec import models
from edgespec.backends.llama_library import bindings

from . import checkpoints
from .commandline import EDGESPEC, PROMPT, refused, run, unix
from .small_pair import SMALL_PAIR

GPU = bool(bindings().llama_supports_gpu_offload())


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
    assert "the prompt is empty" in refused(run("chat", "-f", empty))
    assert "--system and --system-file exclude" in refused(
        run("chat", "-p", "x", "--system", "a", "--system-file", empty)
    )


@unix
def test_a_pipe_in_place_of_a_text_is_one_line(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for option in ("-f", "--system-file"):
        for path in (tmp_path / "pipe", "/dev/zero"):
            assert "it is a pipe or a device, not a file; give" in refused(run("chat", "-p", "x", option, path))
    done = subprocess.run([EDGESPEC, "chat", "-p", b"\xff"], capture_output=True, text=True, check=False, timeout=60)
    assert "-p is not text in UTF-8" in refused(done)


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
        (["--drafter", "oracle"], "no drafter 'oracle'; there are lookup, model, cross-vocabulary, mtp, "),
        (["missing.gguf", "--drafter", "oracle"], "no drafter 'oracle'"),  # before anything is fetched
        (
            ["--drafter", "model", "--draft", "none"],
            "no drafter 'model', only lookup, recycling: 'model' needs a draft model",
        ),
        (["--verifier", "hope"], "no verifier 'hope'; there are match, rejection, block"),
        (["--temp", "-1"], "temperature"),
        (["--ctx", "-5"], "context is -5"),
        (["--threads", "100000"], "threads is 100000"),
        (["--k", "1000"], "k is 1000"),
        (["--temp", "nan"], "temperature is nan"),
        (["--gpu-layers", "5"], "gpu_layers is 5") if not GPU else (["--gpu-layers", "-7"], "gpu_layers is -7"),
        (["--threads", "x"], "threads"),
        (
            ["--draft", str(models.demo().target)],
            f"--draft names the target itself, {models.demo().target}; name a smaller model",
        ),
        (["--provider", "cuda"], "--provider cuda is for ONNX and OpenVINO models, and llama.cpp runs"),
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
    half.write_bytes(SMALL_PAIR.target.read_bytes()[: SMALL_PAIR.target.stat().st_size // 2])
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
    assert "the prompt is empty" in refused(run("chat", *arguments, stdin="\n"))


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
