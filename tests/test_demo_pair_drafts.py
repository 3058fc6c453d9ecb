"""Drafts of the demo pair that learn from the target's own answers: what it says, what they read, what they gain."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import pytest

from edgespec.converters import convert
from edgespec.converters.head_kinds import kind_of

from . import checkpoints
from .distillation import with_torch
from .test_demo_pair_tasks import checkouts

pytestmark = with_torch
VOCABULARY = 512
MASK = 5


def kit(folder: Path) -> Path:
    from benchmarks.demo_pair import kit, vocabulary  # noqa: PLC0415

    kit.write_kit(checkouts(folder / "checkouts"), folder / "kit")
    vocabulary.write(vocabulary.train(["to be or not to be " * 3], VOCABULARY), folder / "kit")
    return folder / "kit"


def small(seed: int, layers: int = 2) -> Any:
    import torch  # noqa: PLC0415

    from benchmarks.demo_pair.models import Shape, new_draft  # noqa: PLC0415

    model = new_draft(VOCABULARY, Shape(64, layers, 96, 2, 1)).eval()
    torch.manual_seed(seed)
    for each in model.parameters():
        if each.ndim == 2:
            torch.nn.init.normal_(each, std=0.3)
    return model


def packed() -> Any:
    """Two windows of two chats each, with two answers in the second of them."""
    from benchmarks.demo_pair.packing import windows  # noqa: PLC0415

    rng = random.Random(1)  # noqa: S311 - no secret
    one = [0.0] * 4 + [1.0] * 8
    two = [0.0] * 3 + [1.0] * 5 + [0.0] * 4 + [1.0] * 7
    chats = [([rng.randrange(10, VOCABULARY) for _ in weights], weights) for weights in (one, two, one, two)]
    return next(windows(iter([*chats, *chats]), 2, 33, rng))


def test_answers_of_many_dialogues_are_those_of_each_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch  # noqa: PLC0415
    from tokenizers import Tokenizer  # noqa: PLC0415

    from benchmarks.demo_pair import answers  # noqa: PLC0415

    monkeypatch.setattr(answers, "_ENDS", ends := tuple(range(0, VOCABULARY, 5)))
    model, tokenizer = small(3), Tokenizer.from_file(str(kit(tmp_path) / "tokenizer.json"))
    chats = [["to be", "or not", "to be or"], ["not"], ["be be be be", "to"], ["or", "or to"]]
    asking = answers.Asking(rows=3, longest=12)
    found = list(answers.Answering(model, tokenizer, asking).answered(chats, random.Random(0)))  # noqa: S311
    assert len(found) == 4
    assert sum(sum(each.weights) for each in found) > 20
    said = 0
    for dialogue in found:
        for place in range(1, len(dialogue.tokens)):
            if dialogue.weights[place]:
                with torch.no_grad():
                    row = model(torch.tensor([dialogue.tokens[:place]])).logits[0, -1]
                assert int(row.argmax()) == dialogue.tokens[place]
                ended = dialogue.tokens[place] in ends
                assert ended == (place + 1 == len(dialogue.tokens) or not dialogue.weights[place + 1])
                said += ended
        assert f"user\n{dialogue.turns[0]}" in tokenizer.decode(dialogue.tokens, skip_special_tokens=False)
    assert said >= 4


def test_masks_are_read_as_in_a_pass_of_the_drafter() -> None:
    import torch  # noqa: PLC0415

    from benchmarks.demo_pair.masks import Pard, masked  # noqa: PLC0415

    model, batch, pard = small(4), packed(), Pard(MASK, block=4, places=16)
    made = masked(batch, pard, torch.Generator().manual_seed(0))
    with torch.no_grad():
        rows = model(made.tokens, attention_mask=made.sees, position_ids=made.positions).logits
    compared = 0
    for row in range(2):
        masks = rows[row, 33:].view(16, 3, -1)
        for place, (aims, counts) in enumerate(zip(made.aims[row], made.counts[row], strict=True)):
            last = int(aims[0]) - 1
            chat = batch.chats[row].tolist()
            start = chat.index(chat[last])
            text = batch.tokens[row, start : last + 1].tolist()
            with torch.no_grad():
                alone = model(torch.tensor([[*text, *[MASK] * 3]])).logits[0, -3:]
            for depth in range(3):
                aim = last + 1 + depth
                right = aim + 1 < 33 and all(batch.weights[row, last + 1 : aim + 2] > 0) and chat[aim + 1] == chat[last]
                assert bool(counts[depth]) == right
                if right:
                    assert torch.allclose(masks[place, depth], alone[depth], atol=1e-4)
                    compared += 1
    assert compared > 30


def test_all_kinds_of_drafts_come_closer_to_the_target() -> None:
    import torch  # noqa: PLC0415

    from benchmarks.demo_pair.distilling import Distilling, Pace  # noqa: PLC0415
    from benchmarks.demo_pair.heads import HEADS  # noqa: PLC0415
    from benchmarks.demo_pair.masks import Pard  # noqa: PLC0415
    from benchmarks.demo_pair.students import Blocks, Steps, Student  # noqa: PLC0415

    torch.manual_seed(0)
    target = small(6, layers=4)
    students: dict[str, Student] = {"steps": Steps(small(5)), "block": Blocks(small(5), Pard(MASK, 4, 16))}
    students |= {name: make(target) for name, make in HEADS.items()}
    training, batch = Distilling(target, students, Pace(1.0)), packed()
    before = {name: float(loss.detach()) for name, loss in training.losses(batch).items()}
    for _ in range(30):
        training._step(batch, 2e-2)
    after = {name: float(loss.detach()) for name, loss in training.losses(batch).items()}
    for name in students:
        assert after[name] < 0.8 * before[name], name


def test_a_target_guesses_all_of_its_own_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tokenizers import Tokenizer  # noqa: PLC0415

    from benchmarks.demo_pair import answers  # noqa: PLC0415
    from benchmarks.demo_pair.counting import right_by_depth  # noqa: PLC0415
    from benchmarks.demo_pair.masks import Pard  # noqa: PLC0415
    from benchmarks.demo_pair.students import Blocks, Steps  # noqa: PLC0415

    monkeypatch.setattr(answers, "_ENDS", tuple(range(0, VOCABULARY, 7)))
    model, tokenizer = small(3), Tokenizer.from_file(str(kit(tmp_path) / "tokenizer.json"))
    chats = [["to be", "or not"], ["not"], ["be be be be", "to"], ["or", "or to"]] * 8
    asking = answers.Asking(longest=40)
    known = list(answers.Answering(model, tokenizer, asking).answered(chats, random.Random(0)))  # noqa: S311
    assert right_by_depth(model, Steps(model), known) == [1.0] * 8
    assert max(right_by_depth(model, Steps(small(9)), known)) < 0.5
    first, second, *_ = right_by_depth(model, Blocks(model, Pard(MASK, 8)), known)
    assert first == 1.0
    assert second < 1.0, "nobody taught it to guess by masks"


def test_the_command_writes_checkpoints_that_are_converted(tmp_path: Path) -> None:
    from benchmarks.demo_pair.drafting import Wanted, run  # noqa: PLC0415

    for name in ("target", "draft"):
        list(convert(checkpoints.llama(tmp_path / name), tmp_path / f"{name}.gguf", quantization="f16"))
    draft = str(tmp_path / "draft.gguf")
    place = kit(tmp_path), tmp_path / "target.gguf", tmp_path / "out"
    told = list(
        run(Wanted(*place, minutes=0.01, share=0.002, steps=(draft,), blocks=(draft,), heads=("medusa",), mask=MASK))
    )
    assert kind_of(tmp_path / "out" / "medusa") == "medusa"
    assert any(line.startswith("draft-pard: right by depth") for line in told)
    known = json.loads((tmp_path / "out" / "draft-pard" / "config.json").read_text())
    assert (known["pard_token"], known["edgespec_parallel"]) == (MASK, 12)
    assert "pard_token" not in json.loads((tmp_path / "out" / "draft" / "config.json").read_text())
    list(convert(tmp_path / "out" / "draft-pard", tmp_path / "pard.gguf", quantization="f16"))


def test_what_cannot_be_trained_is_refused(tmp_path: Path) -> None:
    from benchmarks.demo_pair.answers import Dialogue  # noqa: PLC0415
    from benchmarks.demo_pair.drafting import Wanted, _require_use, run  # noqa: PLC0415

    for name in ("target", "draft"):
        list(convert(checkpoints.llama(tmp_path / name), tmp_path / f"{name}.gguf", quantization="f16"))
    draft = str(tmp_path / "draft.gguf")
    wanted = Wanted(kit(tmp_path), tmp_path / "target.gguf", tmp_path / "out", blocks=(draft,), mask=7)
    with pytest.raises(click.UsageError, match="give --draft, --pard or --head"):
        list(run(replace(wanted, blocks=())))
    with pytest.raises(click.UsageError, match="two drafts are called draft-pard"):
        list(run(replace(wanted, blocks=(draft, draft))))
    for layers in ("layers:0,9", "layers:1,1", "layers:", "layers:-1"):
        with pytest.raises(click.UsageError, match="names no layers of the target; give some of 0 to 1"):
            list(run(replace(wanted, steps=(layers,))))
    with pytest.raises(click.UsageError, match="no copying circuit"):
        list(run(replace(wanted, steps=("layers:0",))))
    with pytest.raises(click.UsageError, match="ended none of its answers"):
        _require_use([], wanted)
    with pytest.raises(click.UsageError, match="have the token 7"):
        _require_use([Dialogue(("hello",), [5, 7], [0.0, 1.0])], wanted)
    _require_use([Dialogue(("hello",), [5, 7], [0.0, 1.0])], replace(wanted, blocks=(), steps=(draft,)))


def test_heads_guess_from_the_rows_before_a_round() -> None:
    """Place by place: what a head guesses in a window of several chats is what it guesses in each chat alone, from the
    target's rows before the last token."""
    import torch  # noqa: PLC0415

    from benchmarks.demo_pair.distilling import taught_by  # noqa: PLC0415
    from benchmarks.demo_pair.heads import HEADS  # noqa: PLC0415
    from benchmarks.demo_pair.masks import masked  # noqa: PLC0415

    target, batch = small(6, layers=4), packed()
    for name, make in HEADS.items():
        head, compared = make(target), 0
        for each in head.trained.parameters():
            torch.nn.init.normal_(each, std=0.2)
        made = masked(batch, replace(head.pard, places=16), torch.Generator().manual_seed(0))
        with torch.no_grad():
            found = head.guesses(taught_by(target, batch), made)
            for row, place in ((row, place) for row in range(2) for place in range(found.shape[1])):
                last = int(made.before[row, place, 0])
                begin = batch.chats[row].tolist().index(int(batch.chats[row, last]))
                count = int(made.counts[row, place].sum())
                if count and last > begin:
                    text = batch.tokens[row, begin : last + 1 + count]
                    assert found[row, place, : count + 1].tolist() == _alone(head, target, text, last - begin, count)
                    compared += 1
        assert compared > 10, name


def _alone(head: Any, target: Any, text: Any, last: int, count: int) -> list[int]:
    """The guesses after the token `last` of a chat, and `count` more."""
    import torch  # noqa: PLC0415

    states = target(text[None], output_hidden_states=True).hidden_states
    if not hasattr(head, "_layers"):
        return [int(head._heads.logits(depth, states[-1][0, last - 1]).argmax()) for depth in range(min(4, count + 1))]
    rows = torch.cat([states[layer][:, :last] for layer in head._layers], -1)
    sees = torch.ones(1, 1, 1, last, dtype=torch.bool)
    tokens = torch.nn.functional.pad(text[None], (0, count + 1))
    chains = head._head.chains(tokens, rows, torch.tensor([[last - 1]]), sees, count + 1)
    return [int(head._head.logits(state[0, 0]).argmax()) for state in chains]


def test_layers_of_the_target_are_a_draft() -> None:
    """Where nothing is in the dimensions of the circuit, all layers without them say what the target says."""
    import torch  # noqa: PLC0415
    from transformers import LlamaConfig, LlamaForCausalLM  # noqa: PLC0415

    from benchmarks.demo_pair.models import model_of  # noqa: PLC0415
    from benchmarks.demo_pair.pruning import pruned  # noqa: PLC0415

    config = {"model_type": "llama", "vocab_size": 64, "hidden_size": 320, "intermediate_size": 96}
    config |= {"num_hidden_layers": 3, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 64}
    config |= {"rms_norm_eps": 1e-5, "rope_theta": 1e4, "tie_word_embeddings": False}
    torch.manual_seed(0)
    whole = LlamaForCausalLM(LlamaConfig(**config)).eval()
    with torch.no_grad():
        for name, each in whole.named_parameters():
            if each.ndim == 2:
                torch.nn.init.normal_(each, std=0.2)
                each[
                    (slice(64, None),)
                    if name.endswith(("o_proj.weight", "down_proj.weight"))
                    else (..., slice(64, None))
                ] = 0
    tokens, weights = torch.arange(20)[None], whole.state_dict()
    with torch.no_grad():
        expected = whole(tokens).logits
        assert torch.allclose(model_of(*pruned(config, weights, [0, 1, 2]))(tokens).logits, expected, atol=1e-2)
        fewer = model_of(*pruned(config, weights, [0, 2]))
        assert fewer.config.num_hidden_layers == 2
        assert not torch.allclose(fewer(tokens).logits, expected, atol=0.1)
    assert torch.equal(
        fewer.model.layers[1].self_attn.q_proj.weight, weights["model.layers.2.self_attn.q_proj.weight"][:, :64]
    )
