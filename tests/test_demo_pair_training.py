"""The demo pair's target: growth changes nothing, the circuit copies before any training, a training goes on."""

from __future__ import annotations

import random
import time
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import click
import pytest

from . import checkpoints
from .distillation import with_torch
from .test_demo_pair_tasks import checkouts

pytestmark = with_torch
VOCABULARY = 512
SEEDED = random.Random(0)  # noqa: S311 - no secret


def base(tied: bool = True) -> tuple[dict[str, Any], dict[str, Any]]:
    """Config and weights of a random Llama with one layer."""
    import torch  # noqa: PLC0415

    from benchmarks.demo_pair.models import Shape, config_of, new_weights  # noqa: PLC0415

    config = config_of(Shape(width=64, layers=1, ffn=96), VOCABULARY) | {"tie_word_embeddings": tied}
    return config, new_weights(config, torch.Generator().manual_seed(1))


def grown(gain: float) -> Any:
    from benchmarks.demo_pair.circuit import Alias  # noqa: PLC0415
    from benchmarks.demo_pair.models import with_circuit  # noqa: PLC0415

    return with_circuit(*base(), Alias(7, 8), above=1, gain=gain).eval()


def test_a_grown_model_says_what_the_small_one_says() -> None:
    import torch  # noqa: PLC0415
    from transformers import LlamaConfig, LlamaForCausalLM  # noqa: PLC0415

    config, weights = base()
    small = LlamaForCausalLM(LlamaConfig(**config)).eval()
    small.load_state_dict(weights | {"lm_head.weight": weights["model.embed_tokens.weight"]})
    tokens = torch.randint(10, VOCABULARY, (2, 40), generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        before, after = small(tokens).logits, grown(0.0)(tokens).logits
    # The added dimensions have up to 8% of the embedding's energy (the circuit's codes, a constant, the copied code),
    # which the norms see: 4% of the size.
    assert float((after - before).abs().max()) < 0.06 * float(before.abs().max())


def test_the_circuit_copies_random_tokens_before_any_training() -> None:
    import torch  # noqa: PLC0415

    once = torch.randint(10, VOCABULARY, (8, 24), generator=torch.Generator().manual_seed(3))
    start = torch.full((8, 1), 1)
    tokens = torch.cat([start, once, once], 1)
    with torch.no_grad():
        likeliest = grown(1.7)(tokens).logits.argmax(-1)
    first = 1 + 24 + 3  # where three tokens are known again
    right = likeliest[:, first - 1 : -1] == tokens[:, first:]
    assert float(right.float().mean()) > 0.9
    wrong = likeliest[:, 3:23] == tokens[:, 4:24]
    assert float(wrong.float().mean()) < 0.1


def encoded(size: int) -> Any:
    return iter([([number] * size, [1.0] * size) for number in range(1, 40)])


def test_chats_of_a_window_do_not_see_each_other() -> None:
    from benchmarks.demo_pair.packing import windows  # noqa: PLC0415

    batch = next(windows(encoded(6), 1, 16, SEEDED))
    mask = batch.mask()[0, 0]
    assert batch.tokens[0].tolist() == [1] * 6 + [2] * 6 + [0] * 4
    assert batch.positions[0, :12].tolist() == [*range(6), *range(6)]
    assert mask[7].nonzero().flatten().tolist() == [6, 7]
    assert mask[5].nonzero().flatten().tolist() == [0, 1, 2, 3, 4, 5]
    assert batch.weights[0].tolist() == ([0.0] + [1.0] * 5) * 2 + [0.0] * 4


def test_a_chat_that_does_not_fit_comes_in_the_next_window() -> None:
    from benchmarks.demo_pair.packing import windows  # noqa: PLC0415

    first, second = islice(windows(encoded(10), 1, 16, SEEDED), 2)
    assert [first.tokens[0, 0], second.tokens[0, 0]] == [1, 2]


def training(folder: Path, minutes: float, monkeypatch: pytest.MonkeyPatch, **drafts: Any) -> Any:
    """A training on random windows, whose clock ticks a second a step; with drafts the target stays as it is."""
    import torch  # noqa: PLC0415

    from benchmarks.demo_pair import training as module  # noqa: PLC0415
    from benchmarks.demo_pair.packing import Windows  # noqa: PLC0415

    ticks = iter(range(10_000))
    monkeypatch.setattr(time, "monotonic", lambda: float(next(ticks)))

    def batches(run: Any) -> Any:
        while True:
            tokens = torch.randint(10, 14, (2, 12), generator=torch.Generator().manual_seed(run.step))
            yield Windows(tokens, torch.arange(12).repeat(2, 1), torch.zeros(2, 12).long(), torch.ones(2, 12))

    monkeypatch.setattr(module.Training, "_batches", batches)
    torch.manual_seed(0)
    settings = module.Settings(minutes=minutes, save_minutes=0.05)
    settings = replace(settings, rate=0.0) if drafts else settings
    return module.Training(grown(1.7), folder, folder, settings, drafts)


def test_an_interrupted_training_ends_as_one_that_was_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch  # noqa: PLC0415

    whole = training(tmp_path / "whole", 0.2, monkeypatch)
    losses = [figures["target"] for figures in whole.run()]
    assert len(losses) == 12
    assert losses[-1] < losses[0]
    begun = training(tmp_path / "part", 0.2, monkeypatch)
    list(islice(begun.run(), 7))
    again = training(tmp_path / "part", 0.2, monkeypatch)
    assert again.step in range(1, 7)
    list(again.run())
    assert (again.step, again.tokens) == (whole.step, whole.tokens)
    for one, other in zip(whole.models["target"].parameters(), again.models["target"].parameters(), strict=True):
        assert torch.allclose(one, other, atol=1e-5)


def test_a_checkpoint_is_converted_and_says_the_same(tmp_path: Path) -> None:
    import torch  # noqa: PLC0415
    from transformers import AutoModelForCausalLM  # noqa: PLC0415

    from benchmarks.demo_pair import vocabulary  # noqa: PLC0415
    from benchmarks.demo_pair.saving import save_checkpoint  # noqa: PLC0415

    vocabulary.write(vocabulary.train(["to be or not to be " * 3], VOCABULARY), tmp_path)
    model = grown(1.7)
    save_checkpoint(model, tmp_path, tmp_path / "checkpoint")
    read = AutoModelForCausalLM.from_pretrained(tmp_path / "checkpoint", dtype=torch.bfloat16)
    assert all(
        torch.equal(one.bfloat16(), other) for one, other in zip(model.parameters(), read.parameters(), strict=True)
    )


def test_training_leaves_the_circuit_as_it_was_set() -> None:
    import torch  # noqa: PLC0415

    from benchmarks.demo_pair.circuit import LAYERS  # noqa: PLC0415
    from benchmarks.demo_pair.layout import Layout  # noqa: PLC0415
    from benchmarks.demo_pair.protection import protect  # noqa: PLC0415

    model, layout = grown(1.7).train(), Layout(64)
    protect(model, layout)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.0)
    tokens = torch.randint(10, VOCABULARY, (2, 20), generator=torch.Generator().manual_seed(4))
    for _ in range(3):
        optimizer.zero_grad()
        model(tokens, labels=tokens).loss.backward()
        optimizer.step()
    moved = {name: (tensor - before[name]).abs() for name, tensor in model.state_dict().items()}
    for name, by in moved.items():
        if any(f"layers.{layer}.self_attn" in name for layer in range(LAYERS)):
            assert not by.any(), name
        elif name.endswith(("o_proj.weight", "down_proj.weight")):
            assert not by[layout.base :].any(), name
            assert by[: layout.base].any(), name
        elif name.endswith(("embed_tokens.weight", "lm_head.weight", "model.norm.weight")):
            assert not by[..., layout.base :].any(), name
            assert by[..., : layout.base].any(), name


def test_drafts_learn_what_the_target_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from benchmarks.demo_pair.models import Shape, new_draft  # noqa: PLC0415

    def drafts() -> dict[str, Any]:
        return {"draft": new_draft(VOCABULARY), "wide": new_draft(VOCABULARY, Shape(320, 1, 64, 4, 2))}

    run = training(tmp_path, 0.2, monkeypatch, **drafts())
    losses = [*run.run()]
    again = training(tmp_path, 0.2, monkeypatch, **drafts())
    for name in drafts():
        assert losses[-1][name] < 0.8 * losses[0][name], name
        for one, other in zip(run.models[name].parameters(), again.models[name].parameters(), strict=True):
            assert one.equal(other), "its weights are kept with the target's"


def test_a_gguf_file_is_read_as_the_checkpoint_that_it_was_made_from(tmp_path: Path) -> None:
    import torch  # noqa: PLC0415

    from benchmarks.demo_pair.models import read  # noqa: PLC0415
    from edgespec.converters import convert  # noqa: PLC0415

    folder = checkpoints.llama(tmp_path / "checkpoint")
    list(convert(folder, tmp_path / "model.gguf", quantization="f16"))
    (_, wanted), (config, found) = read(folder), read(tmp_path / "model.gguf")
    assert config["num_hidden_layers"] == 2
    assert wanted.keys() == found.keys()
    for name, tensor in wanted.items():
        assert torch.allclose(tensor.float(), found[name], atol=1e-2), name


def test_a_target_is_refined_from_its_file(tmp_path: Path) -> None:
    """It says what it said, its circuit stays, and the curriculum is at its end from the first batch on."""
    import torch  # noqa: PLC0415

    from benchmarks.demo_pair import kit, vocabulary  # noqa: PLC0415
    from benchmarks.demo_pair.saving import save_checkpoint  # noqa: PLC0415
    from benchmarks.demo_pair.start import Wanted, opened  # noqa: PLC0415
    from edgespec.converters import convert  # noqa: PLC0415

    kit.write_kit(checkouts(tmp_path / "checkouts"), tmp_path / "kit")
    vocabulary.write(vocabulary.train(["to be or not to be " * 3], VOCABULARY), tmp_path / "kit")
    model, file = grown(1.7), tmp_path / "target.gguf"
    save_checkpoint(model, tmp_path / "kit", tmp_path / "checkpoint")
    list(convert(tmp_path / "checkpoint", file, quantization="f16"))
    run = opened(Wanted(tmp_path / "kit", tmp_path / "run", "cpu", 0.001, refine=file))
    assert [*run.models] == ["target"]
    assert "license: cc-by-sa-4.0" in (tmp_path / "checkpoint" / "README.md").read_text()
    refined = run.models["target"]
    tokens = torch.randint(10, 260, (1, 20), generator=torch.Generator().manual_seed(5))
    with torch.no_grad():
        before, after = model(tokens).logits, refined(tokens).logits
    assert torch.allclose(before, after, atol=0.05 * float(before.abs().max())), "weights are rounded to bfloat16"
    circuit = refined.model.layers[0].self_attn.q_proj.weight.clone()
    assert list(run.run())
    assert refined.model.layers[0].self_attn.q_proj.weight.equal(circuit)
    assert float(run._shown[0]) == 1.0


def test_drafts_that_are_trained_beside_a_refined_target(tmp_path: Path) -> None:
    from benchmarks.demo_pair import kit, vocabulary  # noqa: PLC0415
    from benchmarks.demo_pair.saving import save_checkpoint  # noqa: PLC0415
    from benchmarks.demo_pair.start import Wanted, opened  # noqa: PLC0415
    from edgespec.converters import convert  # noqa: PLC0415

    kit.write_kit(checkouts(tmp_path / "checkouts"), tmp_path / "kit")
    vocabulary.write(vocabulary.train(["to be or not to be " * 3], VOCABULARY), tmp_path / "kit")
    target, small = tmp_path / "target", tmp_path / "small.gguf"
    save_checkpoint(grown(1.7), tmp_path / "kit", target)
    list(convert(checkpoints.llama(tmp_path / "small"), small, quantization="f16"))
    wanted = Wanted(tmp_path / "kit", tmp_path / "run", "cpu", 0.001, refine=target, drafts=(str(small), "draft"))
    run = opened(wanted)
    assert [*run.models] == ["target", "small", "draft"]
    assert run.models["small"].config.num_hidden_layers == 2
    assert run.models["draft"].config.hidden_size == 256
    with pytest.raises(click.UsageError, match="rename a file"):
        opened(replace(wanted, drafts=(str(small), str(small))))
    with pytest.raises(click.UsageError, match="rename a file"):
        opened(replace(wanted, drafts=(str(small.replace(tmp_path / "target.gguf")),)))


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_of_several_processes_follow_the_progress(tmp_path: Path, workers: int) -> None:
    from benchmarks.demo_pair import kit, vocabulary  # noqa: PLC0415
    from benchmarks.demo_pair.batches import Batches  # noqa: PLC0415

    kit.write_kit(checkouts(tmp_path / "checkouts"), tmp_path / "kit")
    vocabulary.write(vocabulary.train(["to be or not to be " * 3], VOCABULARY), tmp_path / "kit")
    source = Batches(tmp_path / "kit", "seed", 2, 128, 0.3)
    source.progress[0] = 0.9
    first, second = islice(iter(source.loaded(workers)), 2)
    assert first.tokens.shape == (2, 128)
    assert not first.tokens.equal(second.tokens)
    assert set(first.weights.unique().tolist()) >= {0.0, 1.0}
