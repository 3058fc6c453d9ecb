"""`edgespec convert`, and checkpoints that other commands convert, as a subprocess."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from . import checkpoints
from .commandline import refused, run, unix
from .hubserver import serving


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


@pytest.mark.parametrize(
    ("out", "options", "says"),
    [
        ("existing.gguf", (), "existing.gguf exists; choose another name, or --force"),
        ("model.bin", (), "must end in .gguf"),
        ("missing/model.gguf", (), "the output folder .*missing does not exist"),
        ("folder.gguf", ("--force",), "folder.gguf is a folder or a device"),
        ("folder.gguf", ("--to", "onnx"), "folder.gguf exists"),
        ("folder.gguf", ("--to", "onnx", "--force"), "folder.gguf holds notes"),
        ("x" * 300 + ".gguf", (), "cannot be written"),
    ],
)
def test_an_output_that_cannot_be_is_refused_before_anything_is_fetched(
    out: str, options: tuple[str, ...], says: str, small_llama: Path, tmp_path: Path
) -> None:
    (tmp_path / "existing.gguf").touch()
    (tmp_path / "folder.gguf").mkdir()
    (tmp_path / "folder.gguf" / "notes").touch()
    files = {path.name: path.read_bytes() for path in small_llama.iterdir()}
    with serving({"org/model": files}) as hub:
        env = {"HF_ENDPOINT": hub.endpoint, "HF_HOME": str(tmp_path / "hf"), "HF_HUB_OFFLINE": "0"}
        done = run("convert", "org/model", "--out", tmp_path / out, *options, env=env)
    assert re.search(says, refused(done))
    assert hub.asked == []


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


@unix
def test_force_never_replaces_a_device(tmp_path: Path) -> None:
    """As root it once replaced /dev/null."""
    (tmp_path / "device.gguf").symlink_to("/dev/null")
    source = checkpoints.llama(tmp_path / "source")
    assert "a folder or a device" in refused(run("convert", source, "--out", tmp_path / "device.gguf", "--force"))
    assert (tmp_path / "device.gguf").is_symlink()
