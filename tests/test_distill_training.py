"""The training of a draft: it learns, an interrupted one ends as one that was not, and nothing is left half-written."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgespec.distill.learner import Draft
from edgespec.distill.lora import Lora
from edgespec.distill.loss import distillation_loss
from edgespec.distill.training import Trainer, Training
from edgespec.errors import ConversionError, ModelFileError, OptionError

from .distillation import VOCABULARY, example, examples, judge, small_files, student, with_torch

pytestmark = with_torch
FAST = Training(epochs=3, rate=2e-2, batch=64, checks=2, patience=9)


def trainer(folder: Path, training: Training = FAST, **given: Any) -> Trainer:
    model = given.get("model") or student()
    return Trainer(Draft(model), given.get("answers") or examples(), training, judge, folder, {"draft": "one"})


def weights(made: Trainer) -> dict[str, Any]:
    return {name: each.numpy() for name, each in made._learner.trained.cpu().state_dict().items()}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Trainer:
    made = trainer(tmp_path_factory.mktemp("whole"))
    list(made.run())
    return made


def test_a_draft_learns_what_the_target_says(whole: Trainer) -> None:
    first, *_, last = whole.history
    assert first.acceptance < 0.3
    assert last.acceptance > 0.9
    assert last.loss < 1.0
    assert math.isnan(first.loss)
    assert [each.step for each in whole.history][-1] == whole.steps
    seen = sum(len(each.answer) for each in examples() if not each.held_out)
    assert last.tokens == seen * FAST.epochs


@pytest.mark.parametrize("after", [4, 8, 12])
def test_an_interrupted_training_ends_as_one_that_was_not(after: int, whole: Trainer, tmp_path: Path) -> None:
    """Before the first check, and after one in the middle and one at the end of an epoch."""
    import torch  # noqa: PLC0415

    steps = trainer(tmp_path).run()
    for _ in range(after):
        next(steps)
    steps.close()
    again = trainer(tmp_path, model=student(7))  # the weights come from the state
    assert again._step == after // 5 * 5  # a check comes after each five steps
    list(again.run())
    assert [(each.step, each.tokens, each.acceptance) for each in again.history] == [
        (each.step, each.tokens, each.acceptance) for each in whole.history
    ]
    last, other = (torch.load(each._folder / "state.pt")["model"] for each in (again, whole))
    for name, values in last.items():
        np.testing.assert_allclose(values.numpy(), other[name].numpy(), rtol=1e-4, atol=1e-5)


def test_a_finished_training_only_loads(whole: Trainer) -> None:
    again = trainer(whole._folder, model=student(7))
    assert again.finished
    assert list(again.run()) == []
    assert all(np.array_equal(weights(again)[name], values) for name, values in weights(whole).items())


def test_held_out_answers_are_not_trained_on(tmp_path: Path) -> None:
    """They say the opposite of the others, and the draft does not learn it."""
    others = [example(seed, length=20) for seed in range(30)]
    odd = [example(seed, held_out=True, length=20) for seed in range(10)]
    for each in odd:
        each.tokens[each.start :] = 7
    made = trainer(tmp_path, Training(epochs=2, rate=1e-2, batch=200, patience=9), answers=[*others, *odd])
    list(made.run())
    assert made.history[-1].acceptance < 0.5


def test_it_ends_where_the_draft_does_not_improve(tmp_path: Path) -> None:
    """At a rate that ruins it; the weights are those of the best check, the first one."""
    made = trainer(tmp_path, Training(epochs=50, rate=1e-12, batch=64, checks=2, patience=3))
    list(made.run())
    assert len(made.history) == 4
    assert made._step < made.steps
    before = {name: each.numpy() for name, each in student().state_dict().items()}
    assert all(np.array_equal(weights(made)[name], values) for name, values in before.items())


def test_another_training_is_not_continued(whole: Trainer) -> None:
    with pytest.raises(OptionError, match="--force"):
        trainer(whole._folder, Training(epochs=4, rate=2e-2, batch=64, checks=2, patience=9))


def test_a_damaged_state_is_refused(tmp_path: Path) -> None:
    list(trainer(tmp_path, Training(epochs=1, batch=64)).run())
    path = tmp_path / "state.pt"
    path.write_bytes(path.read_bytes()[:-1000])
    with pytest.raises(ModelFileError, match="damaged"):
        trainer(tmp_path, Training(epochs=1, batch=64))


@pytest.mark.parametrize("room", [1000, 20_000, 60_000])
def test_a_full_disk_keeps_the_state_before(room: int, tmp_path: Path) -> None:
    """It is full in one or the other file, at its beginning, in its numbers or at its end."""
    made = trainer(tmp_path)
    steps = made.run()
    next(steps)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert set(before) == {"state.pt", "best.pt"}
    with small_files(room), pytest.raises(ConversionError, match=r"(best|state)\.pt"):
        list(steps)
    after = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert set(after) == set(before)
    assert after["state.pt"] == before["state.pt"]


def test_a_full_disk_within_a_large_matrix(tmp_path: Path) -> None:
    """Where torch replaces the error by another one that does not name it."""
    import torch  # noqa: PLC0415

    with small_files(1 << 20), pytest.raises(ConversionError, match=r"state\.pt"):
        trainer(tmp_path)._save("state.pt", {"matrix": torch.zeros(1 << 20), "other": torch.zeros(1 << 10)})
    assert list(tmp_path.iterdir()) == []


def test_too_few_held_out_answers_are_one_line(tmp_path: Path) -> None:
    few = [example(0), example(1, held_out=True, length=8)]
    with pytest.raises(OptionError, match="give more prompts"):
        list(trainer(tmp_path, answers=few).run())


def test_the_loss_is_a_divergence_and_a_cross_entropy() -> None:
    """Against the sum over the whole vocabulary, where the others share their probability evenly in both."""
    import torch  # noqa: PLC0415

    p = np.full(VOCABULARY, 0.2 / (VOCABULARY - 2))
    p[[5, 9]] = 0.5, 0.3
    q = np.full(VOCABULARY, 0.4 / (VOCABULARY - 2))
    q[[5, 9]] = 0.2, 0.4
    logits, likely = torch.log(torch.tensor(q))[None].float() + 3.0, torch.tensor([[5, 9]])
    logprobs, said = torch.log(torch.tensor([[0.5, 0.3]])), torch.tensor([9])
    expected = float((p * np.log(p / q)).sum())
    assert float(distillation_loss(logits, likely, logprobs, said, 0.0)) == pytest.approx(expected, rel=1e-4)
    both = float(distillation_loss(logits, likely, logprobs, said, 0.5))
    assert both == pytest.approx(expected - 0.5 * math.log(0.4), rel=1e-4)
    # A token that the draft does not have counts with all others.
    unknown = float(distillation_loss(logits, torch.tensor([[5, 99]]), logprobs, said, 0.0))
    assert unknown == pytest.approx(0.5 * math.log(0.5 / 0.2) + 0.5 * math.log(0.5 / 0.8), rel=1e-4)


def test_low_rank_changes_are_merged(tmp_path: Path) -> None:
    """They learn, alone, and the merged model guesses the same as the one with its changes beside it."""
    import torch  # noqa: PLC0415

    model, before = student(), student()
    lora = Lora(model, 4)
    made = Trainer(Draft(model, lora.weights), examples(), FAST, judge, tmp_path, {})
    sizes = sum(each.numel() for each in lora.weights.parameters())
    assert sizes == 4 * (4 * (32 + 32) + 3 * (32 + 64))
    list(made.run())
    assert made.history[-1].acceptance > made.history[0].acceptance + 0.1  # of random matrices, under a frozen output
    tokens = torch.tensor([[3, 6, 9, 12]])
    with torch.inference_mode():
        beside = model(input_ids=tokens).logits
        lora.merge()
        merged = model(input_ids=tokens).logits
    assert torch.allclose(beside, merged, atol=1e-4)
    assert not torch.allclose(merged, before(input_ids=tokens).logits, atol=0.1)
    changed = {
        name
        for (name, ours), theirs in zip(model.named_parameters(), before.parameters(), strict=True)
        if not torch.equal(ours, theirs)
    }
    assert len(changed) == 7
    assert all(name.endswith("_proj.weight") for name in changed)


def test_an_interrupted_training_of_low_rank_changes_goes_on(tmp_path: Path) -> None:
    """Its state has the changes alone."""

    def lora() -> Trainer:
        model = student()
        return Trainer(Draft(model, Lora(model, 4).weights), examples(), FAST, judge, tmp_path / "a", {})

    steps = (first := lora()).run()
    for _ in range(7):
        next(steps)
    steps.close()
    again = lora()
    assert again._step == 5
    assert [each.acceptance for each in again.history] == [each.acceptance for each in first.history]
    assert set(again._weights.state_dict()) == set(first._weights.state_dict())
    assert (tmp_path / "a" / "state.pt").stat().st_size < 60_000
