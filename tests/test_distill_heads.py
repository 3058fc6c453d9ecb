"""Heads that learn from the target's answers: Medusa and EAGLE-3, from hidden states on disk to a pair."""

from __future__ import annotations

import json
import sys
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import edgespec
from edgespec import Device
from edgespec.backends import FINAL
from edgespec.converters.head_kinds import kind_of
from edgespec.distill import eagle3, head_checkpoint
from edgespec.distill.eagle3 import Eagle3
from edgespec.distill.head_tokens import likeliest
from edgespec.distill.medusa import HEADS, Medusa
from edgespec.distill.shards import Shards
from edgespec.distill.states import Read, States
from edgespec.distill.training import Trainer, Training
from edgespec.errors import ConversionError, ModelFileError, OptionError
from edgespec.storage import pair_file
from edgespec.terminal import distill as command
from edgespec.terminal.distill_options import DistillOptions

from .commandline import refused, run
from .distillation import VOCABULARY, example, examples, judge, small_files, with_torch
from .eagle3_heads import Reference
from .medusa_heads import Chain, chain_in

LEARNING = Training(epochs=4, rate=1e-2, batch=64, checks=1, patience=9)
EMBEDDING = np.random.default_rng(0).standard_normal((VOCABULARY, 64)).astype(np.float32)


@pytest.fixture(scope="module")
def chain(tmp_path_factory: pytest.TempPathFactory) -> Chain:
    """A target of four layers whose next token depends on the last one only."""
    return chain_in(tmp_path_factory.mktemp("chain"), layers=4)


@pytest.fixture
def options(chain: Chain, tmp_path: Path) -> DistillOptions:
    asked = tmp_path / "questions.txt"
    asked.write_text("".join(f"Question {i}: what comes after {i}?\n" for i in range(90)))
    given: dict[str, Any] = dict.fromkeys(field.name for field in fields(DistillOptions))
    given |= {"target": chain.source, "out": tmp_path / "pair", "prompts": (asked,), "ctx": 256, "temps": (0.0,)}
    given |= {"answers": 1, "max_tokens": 24, "epochs": 2, "batch": 256, "threads": 1, "rate": 1e-2}
    given |= {"remembered": False, "collect": False, "yes": True, "force": False, "head": "medusa"}
    return DistillOptions(**given)


def head(kind: str, tokens: int = VOCABULARY) -> Any:
    kept = np.arange(tokens)
    return Medusa(EMBEDDING, kept) if kind == "medusa" else Eagle3(EMBEDDING, kept, (1, 2, 3))


def heard(kind: str) -> list[Any]:
    """Examples whose rows are embeddings, from which all that follows can be told."""
    width = 1 if kind == "medusa" else 3
    return [replace(each, rows=np.tile(EMBEDDING[each.tokens], width).astype(np.float16)) for each in examples()]


@with_torch
@pytest.mark.parametrize("kind", ["medusa", "eagle3"])
def test_a_head_learns_what_the_target_says(kind: str, tmp_path: Path) -> None:
    made = head(kind)
    trainer = Trainer(made, heard(kind), LEARNING, judge, tmp_path, {})
    list(trainer.run())
    assert trainer.history[0].acceptance < 0.3
    assert trainer.history[-1].acceptance > 0.9
    right = np.concatenate(list(made.right([each for each in heard(kind) if each.held_out])))
    assert right[:, HEADS - 1].mean() > 0.6  # so it has learnt to guess the fourth token, too


@with_torch
@pytest.mark.parametrize("kind", ["medusa", "eagle3"])
def test_guesses_are_compared_with_the_tokens_they_are_for(kind: str) -> None:
    """Place by place, with a text of its own for each of two lengths in a batch."""
    import torch  # noqa: PLC0415

    made, texts = head(kind), [heard(kind)[0], heard(kind)[4].after(1)]
    assert len(texts[0].tokens) != len(texts[1].tokens)
    with torch.inference_mode():
        together = list(made.right(texts))
        for text, found in zip(texts, together, strict=True):
            for at in range(len(text.answer)):
                if text.start + at < 2:
                    assert not found[at].any()  # no row comes before
                    continue
                own = _guesses(made, text, text.start + at, found.shape[1])
                said = text.tokens[text.start + at :][: found.shape[1]]
                assert found[at, : len(said)].tolist() == [a == b for a, b in zip(own, said, strict=False)]
                assert not found[at, len(said) :].any()


@with_torch
def test_chains_are_what_a_head_drafts() -> None:
    """The logits of each chain of a batch are those of the reference in NumPy."""
    import torch  # noqa: PLC0415

    made, texts = head("eagle3"), [heard("eagle3")[0], heard("eagle3")[4].after(1)]
    for each in made.trained.parameters():
        torch.nn.init.normal_(each, mean=float(each.ndim == 1), std=0.2)
    weights = {name: each.detach().numpy() for name, each in made.trained.state_dict().items()}
    reference, compared = Reference(made.config(), weights, VOCABULARY), 0
    with torch.inference_mode():
        logits = torch.stack([made.logits(state) for state in made._passes(texts, HEADS)], 2).numpy()
    for own, text in zip(logits, texts, strict=True):
        for number, at in enumerate(range(max(text.start, 2), len(text.tokens) - HEADS)):
            tokens = text.tokens.tolist()
            expected = reference.logits(text.rows[: at - 1], tokens[:at], tokens[at : at + HEADS - 1])
            np.testing.assert_allclose(own[number], expected, rtol=1e-3, atol=1e-3)
            compared += 1
    assert compared > 10


def _guesses(made: Any, text: Any, begin: int, count: int) -> list[int]:
    """The guesses of a round that begins at the token `begin`: from the rows before alone, and the guesses' own tokens
    where the text is known."""
    import torch  # noqa: PLC0415

    if isinstance(made, Medusa):
        state = torch.from_numpy(text.rows[begin - 2].astype(np.float32))
        return [int(made.logits(depth, state).argmax()) for depth in range(count)]
    short = replace(text, tokens=text.tokens[: begin + count], rows=text.rows[: begin - 1])
    passes = list(made._passes([short], min(count, len(text.tokens) - begin)))
    number = begin - max(text.start, 2)  # of the chain
    return [int(made.logits(state[0, number]).argmax()) for state in passes]


@with_torch
@pytest.mark.parametrize("kind", ["medusa", "eagle3"])
def test_a_head_is_distilled(
    kind: str, options: DistillOptions, chain: Chain, capfd: pytest.CaptureFixture[str]
) -> None:
    """For a GGUF file, of which there is no checkpoint."""
    assert command.distill(replace(options, target=chain.gguf, head=kind, epochs=8, rate=2e-2))
    out, _ = capfd.readouterr()
    assert "0 different" in out
    draft = "draft.onnx" if kind == "medusa" else "draft.gguf"
    assert {path.name for path in options.out.iterdir()} == {draft, "checkpoint", "pair.json", ".distill"}
    assert kind_of(options.out / "checkpoint") == kind
    about = pair_file.read(options.out / "pair.json").about
    assert about["distilled"]["draft"] == kind
    assert about["measured"]["acceptance"][0] > about["distilled"]["before"]["acceptance"][0] + 0.1
    # What the training computed of the held-out answers is what the head does in the runtime.
    simulated = max(float(line.split()[2].rstrip("%")) / 100 for line in out.splitlines() if _is_checkup(line))
    assert abs(simulated - about["measured"]["acceptance"][0]) < 0.1
    with edgespec.load(options.out, device=Device(context=256, threads=1)) as runtime:
        assert kind in runtime.drafters


def _is_checkup(line: str) -> bool:
    parts = line.split()
    return len(parts) == 4 and parts[0].replace(",", "").isdigit() and parts[2].endswith("%")


@with_torch
@pytest.mark.parametrize("where", ["states", "training"])
def test_an_interrupted_head_goes_on(
    where: str, options: DistillOptions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from safetensors import numpy as safetensors  # noqa: PLC0415

    whole, options = replace(options, out=tmp_path / "whole", head="eagle3"), replace(options, head="eagle3")
    assert command.distill(whole)
    with monkeypatch.context() as patch:
        _interrupt(where, patch)
        with pytest.raises(KeyboardInterrupt):
            command.distill(options)
    work = options.out / ".distill"
    assert (work / "states" / "rows-00000.npy").is_file()
    assert (work / "states" / "rows-00003.npy").is_file() == (where == "training")
    assert command.distill(options)
    assert not (work / "states").exists()
    ours, theirs = (safetensors.load_file(each.out / "checkpoint" / "model.safetensors") for each in (options, whole))
    for name, values in theirs.items():
        np.testing.assert_allclose(ours[name], values, rtol=1e-2, atol=1e-3)
    results = [json.loads((each.out / "pair.json").read_text())["measured"]["acceptance"] for each in (whole, options)]
    assert results[0] == results[1]


def _interrupt(where: str, patch: pytest.MonkeyPatch) -> None:
    if where == "states":
        rows, calls = States._rows, 0

        def later(*given: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls > 20:  # in the second shard
                raise KeyboardInterrupt
            return rows(*given)

        patch.setattr(States, "_rows", later)
    else:
        train = Trainer._train

        def fifth(self: Any, batch: Any) -> float:
            if self._step > 4:
                raise KeyboardInterrupt
            return train(self, batch)

        patch.setattr(Trainer, "_train", fifth)


def test_rows_on_disk_are_those_of_the_target(small_pair: dict[str, Path], tmp_path: Path) -> None:
    """Of the part of each text that is read, whatever was computed before it."""
    read = Read((1, FINAL), 3, 12)
    given = [example(0, length=20, start=12), example(5, length=9, start=2), example(7, length=30, start=8)]
    shards = Shards(tmp_path / "answers", {})
    shards.write(0, given)
    with edgespec.load(small_pair["target"], "none", device=Device(context=256, threads=1)) as target:
        width = target.session.layer_width  # type: ignore[attr-defined]
        states = States(tmp_path / "states", read, {})
        assert list(states.collect(target, shards, 1)) == [0, 1]
        found = states.examples(0, given)
        for each, whole in zip(found, given, strict=True):
            assert each.tokens.tolist() == read.cut(whole).tokens.tolist()
            assert len(each.tokens) <= 12
            assert each.rows is not None
            assert each.rows.shape == (len(each.tokens), 2 * width)
        # The last row depends on the whole text before it, and the text alone.
        alone = Shards(tmp_path / "alone", {})
        alone.write(0, given[2:])
        other = States(tmp_path / "other", Read((1, FINAL), 99, 99), {})
    with edgespec.load(small_pair["target"], "none", device=Device(context=256, threads=1)) as target:
        list(other.collect(target, alone, 1))
    (whole,) = other.examples(0, given[2:])
    assert whole.rows is not None
    assert found[2].rows is not None
    assert found[2].tokens.tolist() == given[2].tokens[7:19].tolist()  # a window keeps one token of the prompt
    np.testing.assert_allclose(found[2].rows, whole.rows[7:19], rtol=0.05, atol=0.05)


def test_rows_of_other_answers_or_layers_are_computed_again(tmp_path: Path) -> None:
    for read, plan in ((Read((1,), 3, 9), {"target": "b"}), (Read((2,), 3, 9), {"target": "a"})):
        States(tmp_path, Read((1,), 3, 9), {"target": "a"})
        (tmp_path / "rows-00000.npy").write_bytes(b"rows")
        States(tmp_path, Read((1,), 3, 9), {"target": "a"})
        assert (tmp_path / "rows-00000.npy").exists()
        States(tmp_path, read, plan)
        assert not (tmp_path / "rows-00000.npy").exists()


def test_damaged_rows_are_refused(tmp_path: Path) -> None:
    read, given = Read((1,), 9, 99), [example(0, length=20)]
    states = States(tmp_path, read, {})
    np.save(tmp_path / "rows-00000.npy", np.zeros((19, 4), np.float16))
    with pytest.raises(ModelFileError, match="damaged"):
        states.examples(0, given)
    (tmp_path / "rows-00001.npy").write_bytes(b"no array")
    with pytest.raises(ModelFileError, match="damaged"):
        states.examples(1, given)


@with_torch
@pytest.mark.skipif(sys.platform == "win32", reason="limits of files need a Unix")
def test_a_full_disk_leaves_no_part_of_a_head(tmp_path: Path) -> None:
    with small_files(2000), pytest.raises(ConversionError, match="checkpoint"):
        head_checkpoint.write(head("eagle3"), tmp_path / "checkpoint")
    assert list(tmp_path.iterdir()) == []


def test_a_head_has_the_tokens_that_are_likely() -> None:
    """Also those that were likely and not said; never those of held-out answers alone."""
    given = [example(seed, length=12) for seed in range(0, 30, 3)]
    given.append(replace(example(0, held_out=True, length=12), likely=np.full((8, 32), 4000, np.int32)))
    found = likeliest(given, 50_000)
    assert len(found) == 1024
    assert set(range(VOCABULARY)) <= set(found.tolist())
    assert 4000 not in found
    assert (np.diff(found) > 0).all()
    assert len(likeliest(given, 5000)) == 1024
    assert len(likeliest(given[:-1], VOCABULARY)) == VOCABULARY


def test_targets_that_cannot_have_a_head() -> None:
    assert eagle3.layers(32) == (8, 16, 31)
    with pytest.raises(OptionError, match="medusa"):
        eagle3.layers(3)
    assert (eagle3.width_of(512), eagle3.width_of(8192)) == (256, 1024)
    with pytest.raises(OptionError, match="medusa"):
        eagle3.width_of(32)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (("draft", "--head", "medusa"), "DRAFT or --head, not both"),
        (("--head", "eagle3", "--from-scratch", "1M"), "--from-scratch or --head, not both"),
        (("--head", "eagle3", "--lora", "4"), "leave --lora out"),
        (("--from-scratch", "1M"), "take --head eagle3"),
    ],
)
def test_one_line_says_why(given: tuple[str, ...], why: str, small_pair: dict[str, Path], tmp_path: Path) -> None:
    assert why in refused(run("distill", small_pair["target"], *given, "--out", tmp_path / "out"))
    assert not (tmp_path / "out").exists()
