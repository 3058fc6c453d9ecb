"""`edgespec distill`, from two checkpoints to a pair."""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgespec.converters.checkpoint import Checkpoint
from edgespec.converters.stored_tensor import float32
from edgespec.distill import student
from edgespec.distill.shards import Shards
from edgespec.distill.training import Trainer
from edgespec.errors import ConversionError, VocabularyMismatch
from edgespec.storage import pair_file
from edgespec.terminal import distill as command
from edgespec.terminal.distill_options import DistillOptions

from . import checkpoints
from .checkpoints import write_safetensors
from .distillation import small_files, with_torch

pytestmark = with_torch


@pytest.fixture
def asked(tmp_path: Path) -> Path:
    file = tmp_path / "questions.txt"
    file.write_text("".join(f"Question {i}: what comes after {i}?\n" for i in range(60)))
    return file


@pytest.fixture(scope="module")
def worsened(small_llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The target with noise on its weights: a draft that is often wrong."""
    folder = Path(shutil.copytree(small_llama, tmp_path_factory.mktemp("drafts") / "worsened"))
    noise = np.random.default_rng(0)
    found = {name: each + noise.normal(0, 0.5 * each.std(), each.shape) for name, each in tensors(folder).items()}
    write_safetensors(folder / "model.safetensors", {name: each.astype(np.float32) for name, each in found.items()})
    return folder


@pytest.fixture
def options(small_llama: Path, worsened: Path, asked: Path, tmp_path: Path) -> DistillOptions:
    given: dict[str, Any] = dict.fromkeys(field.name for field in fields(DistillOptions))
    given |= {"target": small_llama, "draft": worsened, "out": tmp_path / "pair", "prompts": (asked,), "ctx": 256}
    given |= {"temps": (0.0,), "answers": 1, "max_tokens": 24, "epochs": 1, "batch": 512, "threads": 1}
    given |= {"remembered": False, "collect": False, "yes": True, "force": False}
    return DistillOptions(**given)


def tensors(folder: Path) -> dict[str, Any]:
    found = Checkpoint.open(folder).tensors
    return {n: np.concatenate([float32(block) for block in t.blocks()]).reshape(t.shape) for n, t in found.items()}


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_a_pair_is_distilled(options: DistillOptions, capfd: pytest.CaptureFixture[str]) -> None:
    assert command.distill(options)
    out, err = capfd.readouterr()
    assert err.startswith("at most: ")
    assert "60 answers" in out
    assert "0 different" in out
    assert names(options.out) == {"target.gguf", "draft.gguf", "checkpoint", "pair.json", ".distill"}
    assert names(options.out / ".distill") == {"before.gguf", "answers"}
    about = pair_file.read(options.out / "pair.json").about
    assert about["distilled"]["answers"] == 60
    assert 0.05 < about["distilled"]["before"]["acceptance"][0] < 0.9
    assert about["measured"]["acceptance"]
    assert {path.name for path in (options.out / "checkpoint").iterdir()} >= {"config.json", "model.safetensors"}
    assert Checkpoint.open(options.out / "checkpoint").config == Checkpoint.open(options.draft or Path()).config
    with pytest.raises(ConversionError, match="--force"):
        command.distill(options)
    assert command.distill(replace(options, force=True))


@pytest.mark.parametrize("where", ["collecting", "training", "converting"])
def test_an_interrupted_run_goes_on(
    where: str, options: DistillOptions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupted = replace(options, out=tmp_path / "interrupted")
    assert command.distill(options)
    with monkeypatch.context() as patch:
        _interrupt(where, patch)
        with pytest.raises(KeyboardInterrupt):
            command.distill(interrupted)
    assert not (interrupted.out / "pair.json").exists()
    assert command.distill(interrupted)
    ours, theirs = tensors(interrupted.out / "checkpoint"), tensors(options.out / "checkpoint")
    for name, values in theirs.items():
        np.testing.assert_allclose(ours[name], values, rtol=1e-3, atol=1e-4)
    known = json.loads((interrupted.out / "pair.json").read_text())
    assert known["distilled"] == json.loads((options.out / "pair.json").read_text())["distilled"] | {
        "before": known["distilled"]["before"]  # which has prices
    }


def _interrupt(where: str, patch: pytest.MonkeyPatch) -> None:
    calls = 0

    def interrupting(*_arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        raise KeyboardInterrupt

    if where == "collecting":
        original = Shards.write

        def write(self: Any, number: int, found: Any) -> None:
            original(self, number, found)
            interrupting()

        patch.setattr(Shards, "write", write)
    elif where == "training":
        train = Trainer._train

        def second(self: Any, batch: Any) -> float:
            return interrupting() if self._step else train(self, batch)

        patch.setattr(Trainer, "_train", second)
    else:
        patch.setattr(command._Run, "finished", interrupting)


def test_answers_are_collected_alone_and_used_later(
    options: DistillOptions, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert command.distill(replace(options, collect=True))
    assert "60 answers" in capfd.readouterr().out
    assert names(options.out) == {"target.gguf", ".distill"}
    monkeypatch.setattr(Shards, "write", None)  # nothing is answered again
    assert command.distill(options)


def test_the_draft_of_a_pair_is_known(options: DistillOptions, worsened: Path, tmp_path: Path) -> None:
    """And a target that is not in the new folder is named by its path."""
    assert command.distill(replace(options, collect=True))
    old, new = tmp_path / "old", tmp_path / "new"
    old.mkdir()
    (options.out / "target.gguf").rename(old / "target.gguf")
    (options.out / ".distill" / "before.gguf").rename(old / "draft.gguf")
    made_of = {"draft": {"source": str(worsened)}}
    known = {"target": "target.gguf", "draft": "draft.gguf", "made_of": made_of}
    (old / "pair.json").write_text(json.dumps(known))
    assert command.distill(replace(options, target=old, draft=None, out=new))
    assert names(new) == {"draft.gguf", "checkpoint", "pair.json", ".distill"}
    assert pair_file.read(new / "pair.json").target == old / "target.gguf"


@pytest.mark.skipif(sys.platform == "win32", reason="limits of files need a Unix")
def test_a_full_disk_leaves_no_part_of_a_checkpoint(worsened: Path, tmp_path: Path) -> None:
    model = student.open_student(worsened)
    with small_files(50_000), pytest.raises(ConversionError, match="checkpoint"):
        student.write(model, worsened, tmp_path / "checkpoint")
    assert list(tmp_path.iterdir()) == []


def test_a_draft_from_scratch(options: DistillOptions) -> None:
    assert command.distill(replace(options, draft=None, from_scratch="200K", rate=1e-2))
    config = Checkpoint.open(options.out / "checkpoint").config
    assert config["hidden_size"] == 64
    assert sum(each.size for each in tensors(options.out / "checkpoint").values()) <= 200_000
    assert pair_file.read(options.out / "pair.json").about["distilled"]["draft"] == "200K"


def test_a_draft_with_another_vocabulary_is_refused_before_it_is_trained(
    options: DistillOptions, tmp_path: Path
) -> None:
    other = checkpoints.llama(tmp_path / "other", tokenizer="spm-json")
    with pytest.raises(VocabularyMismatch):
        command.distill(replace(options, draft=other))


def test_a_checkpoint_that_cannot_be_trained_is_one_line(small_llama: Path, tmp_path: Path) -> None:
    broken = shutil.copytree(small_llama, tmp_path / "broken")
    (broken / "config.json").write_text('{"model_type": "no such model"}')
    with pytest.raises(ConversionError, match="cannot be trained"):
        student.open_student(broken)


def test_what_is_trained_is_written_as_it_was_read(small_llama: Path, tmp_path: Path) -> None:
    student.write(student.open_student(small_llama), small_llama, tmp_path / "again")
    for name, values in tensors(small_llama).items():
        assert np.array_equal(tensors(tmp_path / "again")[name], values), name


def test_a_draft_is_changed_by_lora(options: DistillOptions) -> None:
    # Enough training that some check is better than none: else the draft stays as it was.
    assert command.distill(replace(options, lora=8, epochs=4, rate=5e-3))
    before, after = tensors(options.draft or Path()), tensors(options.out / "checkpoint")
    changed = {name for name, values in before.items() if not np.array_equal(values, after[name])}
    assert changed
    assert all(name.endswith("_proj.weight") for name in changed)
