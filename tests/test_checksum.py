"""Checksums: of every byte, and of a sample whose cost does not grow with the file."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from edgespec import Device, Interrupt, load
from edgespec.backends import onnx_checked, open_model
from edgespec.backends.onnx_file import read
from edgespec.converters import convert
from edgespec.errors import Interrupted, ModelFileError
from edgespec.storage.checksum import digest, sampled

from . import checkpoints
from .onnxfolders import rewritten

Folders = Callable[[str], Path]
SMALL = Device(threads=1, context=64)


@pytest.fixture
def copied(onnx_folders: Folders, tmp_path: Path, own_cache: Path) -> Path:
    """An ONNX model to be damaged, in a cache of its own."""
    return Path(shutil.copytree(onnx_folders("int4"), tmp_path / "copied"))


# --- the checksums


@pytest.mark.parametrize("size", [0, 1, 1 << 24, (1 << 25) + 7])
@pytest.mark.parametrize("threads", [1, 3])
def test_the_digest_is_of_blocks(tmp_path: Path, size: int, threads: int) -> None:
    data = os.urandom(1024) * (size // 1024 + 1)
    (tmp_path / "file").write_bytes(data[:size])
    blocks = (data[at : min(size, at + (1 << 24))] for at in range(0, size, 1 << 24))
    expected = hashlib.sha256(b"".join(hashlib.sha256(block).digest() for block in blocks)).hexdigest()
    assert digest(tmp_path / "file", threads) == expected


def test_a_digest_is_given_up(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x")
    with pytest.raises(Interrupted):
        digest(tmp_path / "file", stopped=lambda: True)


def test_a_sample_tells_files_apart(tmp_path: Path) -> None:
    """Where they differ at an end, in length, or in one stretch of 3%."""
    data = bytearray(np.random.default_rng(0).bytes(3_000_000))

    def found(content: bytes | bytearray) -> str:
        (tmp_path / "file").write_bytes(content)
        return sampled(tmp_path / "file")

    first = found(data)
    assert found(data) == first
    kinds = {first, found(data[:-1]), found(data + b"x")}
    for start in (0, 1_234_567, len(data) - 1):
        changed = bytearray(data)
        end = min(len(data), start + len(data) * 3 // 100)
        changed[start:end] = bytes(byte ^ 1 for byte in changed[start:end])
        kinds.add(found(changed))
    assert len(kinds) == 6
    assert found(b"") != found(b"x")


# --- of an ONNX model's weights


def damaged(folder: Path) -> None:
    """Zeros in place of half of the weights, in a file of the same size."""
    data = bytearray((folder / "model.onnx.data").read_bytes())
    data[len(data) // 2 :] = bytes(len(data) - len(data) // 2)
    (folder / "model.onnx.data").write_bytes(data)


def test_damaged_weights_are_refused(copied: Path) -> None:
    damaged(copied)
    with pytest.raises(ModelFileError, match=r"model\.onnx\.data is damaged.*convert it again") as caught:
        load(copied, device=SMALL)
    assert "\n" not in str(caught.value)


def test_weights_are_looked_at_once_for_each_state(copied: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looked = []

    def noted(path: Path, *arguments: object) -> str:
        looked.append(path)
        return digest(path)

    monkeypatch.setattr(onnx_checked, "digest", noted)
    for _ in range(3):
        load(copied, device=SMALL).close()
    assert len(looked) == 1
    data = copied / "model.onnx.data"
    os.utime(data, (1, 1))
    load(copied, device=SMALL).close()
    assert len(looked) == 2
    damaged(copied)
    for times in (3, 4):
        with pytest.raises(ModelFileError):
            load(copied, device=SMALL)
        assert len(looked) == times, "what is damaged is looked at again"


def test_a_look_that_is_interrupted_is_not_remembered(copied: Path) -> None:
    damaged(copied)
    interrupt = Interrupt()
    interrupt.set()
    with pytest.raises(Interrupted):
        load(copied, device=SMALL, interrupt=interrupt)
    with pytest.raises(ModelFileError):
        load(copied, device=SMALL)


def test_models_of_an_older_edgespec_have_no_checksum(copied: Path) -> None:
    rewritten(copied, digest=None)
    assert read(copied / "model.onnx").digest == ""
    load(copied, device=SMALL).close()


# --- whose weights they are


def weights(path: Path, threads: int = 1) -> str:
    model = open_model(path, Device(threads=threads), Interrupt())
    model.close()
    return model.weights


@pytest.mark.parametrize("fmt", ["onnx", "gguf"])
def test_two_tunes_of_one_shape_differ(tmp_path: Path, fmt: str, own_cache: Path) -> None:
    found: dict[str, str] = {}
    for name, seed in (("one", 1), ("another", 2), ("one", 1)):
        source = tmp_path / name
        if not source.exists():
            checkpoints.llama(source, tokenizer="qwen2", seed=seed, generation={})
        output = tmp_path / f"{len(found)}-{name}.gguf"
        for _ in convert(source, output if fmt == "gguf" else output.with_suffix(""), fmt=fmt):
            pass
        found[output.stem] = weights(output if fmt == "gguf" else output.with_suffix(""))
    one, another, again = found.values()
    assert one == again
    assert one != another


def test_the_weights_are_the_same_with_other_threads(onnx_folders: Folders, small_pair: dict[str, Path]) -> None:
    for path in (onnx_folders("int4"), small_pair["target"]):
        assert weights(path) == weights(path, threads=2)
    assert weights(onnx_folders("int4")) != weights(onnx_folders("int8"))
    assert weights(small_pair["target"]) != weights(small_pair["draft"])


def test_weights_without_a_checksum_have_a_name_all_the_same(copied: Path) -> None:
    rewritten(copied, digest=None)
    first = weights(copied)
    assert weights(copied) == first
    damaged(copied)
    assert weights(copied) != first
