"""Distillation without torch: prompts, answers on disk, simulated acceptance, estimates."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

import edgespec
from edgespec import Device, Runtime, Sampling, Speculation
from edgespec.backends import fingerprint
from edgespec.distill import estimate, prompts
from edgespec.distill.collecting import Wanted, collect
from edgespec.distill.example import LIKELY, Example
from edgespec.distill.prompts import Prompt, Source
from edgespec.distill.shards import Shards
from edgespec.distill.simulation import by_depth, chained, score, simulated
from edgespec.distill.student import parameters_of, shape
from edgespec.distill.training import Training
from edgespec.errors import ConversionError, EngineError, MissingPackage, ModelFileError, OptionError
from edgespec.runtime.earlier_texts import EarlierTexts
from edgespec.terminal import distill as command
from edgespec.terminal.distill_options import DistillOptions

from .commandline import refused, run
from .distillation import PRICES, example, small_files

LOOKUP = Speculation(("lookup",))


@pytest.fixture(scope="module")
def target(small_pair: dict[str, Path]) -> Iterator[Runtime]:
    with edgespec.load(small_pair["target"], "none", device=Device(context=256, threads=1)) as runtime:
        yield runtime


@pytest.fixture
def wanted(target: Runtime) -> Wanted:
    asked = [Prompt(tuple(target.vocabulary.tokenize(text)), held_out) for text, held_out in ASKED]
    return Wanted(asked, (0.0, 0.7), 9, 4)


ASKED = (("I need a table", False), ("A train to", True))


def same(one: list[Example], other: list[Example]) -> bool:
    return all(
        a.start == b.start
        and a.temperature == b.temperature
        and a.held_out == b.held_out
        and all(np.array_equal(getattr(a, name), getattr(b, name)) for name in ("tokens", "likely", "logprobs"))
        for a, b in zip(one, other, strict=True)
    )


def read(kept: Shards, wanted: Wanted) -> list[Example]:
    return [each for number in range(wanted.shards) for each in kept.read(number)]


def test_answers_are_the_targets_with_its_probabilities(target: Runtime, wanted: Wanted, tmp_path: Path) -> None:
    kept = Shards(tmp_path / "answers", wanted.plan("key"))
    counts = list(collect(target, wanted, kept, LOOKUP))
    found = read(kept, wanted)
    assert counts[-1] == len(found) == 2 + 2 * 9
    for each, (prompt, sampling) in zip(found, wanted.tasks, strict=True):
        assert (each.temperature, each.held_out) == (sampling.temperature, prompt.held_out)
        assert tuple(each.tokens[: each.start].tolist()) == prompt.tokens
        said = [
            (token.token, [other.token for other in token.top], [other.logprob for other in token.top])
            for event in target.complete(prompt.tokens, sampling, max_tokens=4, logprobs=LIKELY)
            if isinstance(event, edgespec.Text)
            for token in event.logprobs
        ]
        assert each.answer.tolist() == [token for token, _, _ in said]
        assert each.likely[0].tolist() == said[0][1]  # the first row is of the same pass
        assert np.abs(each.logprobs.astype(float) - [row for *_, row in said]).max() < 0.1
        if not each.temperature:
            assert each.likely[:, 0].tolist() == each.answer.tolist()
    assert len({tuple(each.tokens.tolist()) for each in found if each.temperature}) > 2  # seeds differ


def test_an_interrupted_collection_goes_on(target: Runtime, wanted: Wanted, tmp_path: Path) -> None:
    """After the first shard and within the second one."""
    whole = Shards(tmp_path / "whole", wanted.plan("key"))
    list(collect(target, wanted, whole, LOOKUP))
    parts = Shards(tmp_path / "parts", wanted.plan("key"))
    answers = collect(target, wanted, parts, LOOKUP)
    while next(answers) < 18:
        pass
    answers.close()
    assert [parts.holds(number) for number in range(2)] == [True, False]
    before = (tmp_path / "parts" / "answers-00000.npz").stat().st_mtime_ns
    again = Shards(tmp_path / "parts", wanted.plan("key"))
    assert next(collect(target, wanted, again, LOOKUP)) == 16  # nothing of the first shard is answered again
    list(collect(target, wanted, again, LOOKUP))
    assert (tmp_path / "parts" / "answers-00000.npz").stat().st_mtime_ns == before
    assert same(read(whole, wanted), read(again, wanted))


def test_answers_to_other_questions_are_not_used(wanted: Wanted, tmp_path: Path) -> None:
    Shards(tmp_path, wanted.plan("key"))
    Shards(tmp_path, wanted.plan("key"))
    others = (
        wanted.plan("another"),
        replace(wanted, temperatures=(0.0,)).plan("key"),
        replace(wanted, prompts=wanted.prompts[:1]).plan("key"),
        replace(wanted, max_tokens=5).plan("key"),
    )
    for plan in others:
        with pytest.raises(OptionError, match="choose another --out, or --force"):
            Shards(tmp_path, plan)


def test_force_deletes_other_answers_and_keeps_the_same(tmp_path: Path) -> None:
    Shards(tmp_path / "a", {"target": "one"}).write(0, [example(0)])
    assert Shards(tmp_path / "a", {"target": "one"}, force=True).holds(0)
    assert not Shards(tmp_path / "a", {"target": "two"}, force=True).holds(0)


def test_a_shard_keeps_everything(tmp_path: Path) -> None:
    kept = Shards(tmp_path, {})
    given = [example(1), example(2, held_out=True, length=9, start=9), example(3, length=30, start=1)]
    kept.write(7, given)
    assert kept.holds(7)
    assert same(kept.read(7), given)


def test_a_damaged_shard_is_refused(tmp_path: Path) -> None:
    kept = Shards(tmp_path, {})
    kept.write(0, [example(0)])
    path = tmp_path / "answers-00000.npz"
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(ModelFileError, match=r"damaged.*delete it"):
        kept.read(0)


@pytest.mark.skipif(sys.platform == "win32", reason="limits of files need a Unix")
def test_a_full_disk_leaves_no_part_of_a_shard(tmp_path: Path) -> None:
    kept = Shards(tmp_path, {})
    with small_files(1000), pytest.raises(ConversionError, match=r"answers-00000\.npz"):
        kept.write(0, [example(0)])
    assert not kept.holds(0)
    assert [path.name for path in tmp_path.iterdir()] == ["plan.json"]


def test_a_window_keeps_the_answer(tmp_path: Path) -> None:
    whole = example(0, length=20, start=12)
    cut = whole.within(10)
    assert cut.tokens.tolist() == whole.tokens[10:].tolist()
    assert cut.answer.tolist() == whole.answer.tolist()
    short = example(0, length=20, start=2).within(10)  # a token of the prompt, and the beginning of the answer
    assert short.start == 1
    assert short.answer.tolist() == example(0, length=20, start=2).answer.tolist()[:9]
    assert len(short.likely) == len(short.logprobs) == 9


def test_rounds_are_replayed() -> None:
    right = [True, True, False, True, False, True]
    # Drafts of 2 from token 0: both right, and the third is the bonus. From 3: right, wrong. From 5: right, the end.
    assert by_depth(chained(right, 2)) == [(3, 3), (2, 1)]
    assert by_depth(chained([False] * 3, 2)) == [(3, 0), (0, 0)]
    assert by_depth(chained([], 2)) == [(0, 0), (0, 0)]


def test_rounds_of_a_head_are_replayed() -> None:
    """Whose guesses depend on where the round begins."""
    right = np.asarray([[1, 1, 0], [0, 1, 1], [0, 0, 0], [1, 0, 1], [1, 0, 0], [1, 1, 1], [1, 1, 1]], np.bool_)
    # From 0: two right, one wrong. From 3: one right, one wrong. From 5: two right, and then the answer ends.
    assert by_depth(right) == [(3, 3), (3, 2), (1, 0)]


def test_simulated_acceptance_is_that_of_the_runtime(small_pair: dict[str, Path]) -> None:
    """The guesses of the draft after the target's own text, replayed, are what speculation finds."""
    speculation = Speculation(("model",), 8)
    with edgespec.load(
        small_pair["target"], small_pair["draft"], device=Device(context=256, threads=1), speculation=speculation
    ) as pair:
        prompt = pair.prompt([{"role": "user", "content": "I want to go to the cinema in Oakland tonight."}])
        *_, last = (events := list(pair.complete(prompt, Sampling(), max_tokens=40)))
        said = [token for event in events if isinstance(event, edgespec.Text) for token in event.tokens]
    with edgespec.load(small_pair["draft"], "none", device=Device(context=256, threads=1)) as draft:
        guessed = [_next(draft, [*prompt, *said[:at]]) for at in range(len(said))]
    assert isinstance(last, edgespec.Finished)
    assert sum(token == guess for token, guess in zip(said, guessed, strict=True)) < len(said)  # it is wrong at times
    found = by_depth(chained([token == guess for token, guess in zip(said, guessed, strict=True)]))
    assert found[: len(last.stats.by_depth)] == list(last.stats.by_depth)


def _next(model: Runtime, tokens: list[int]) -> int:
    (token,) = (
        token
        for event in model.complete(tokens, Sampling(), max_tokens=1)
        if isinstance(event, edgespec.Text)
        for token in event.tokens
    )
    return token


def test_a_better_draft_has_a_higher_score() -> None:
    often, seldom = ([chained([at % n > 0 for at in range(600)])] for n in (5, 2))
    assert score(simulated(often, PRICES)) > score(simulated(seldom, PRICES))
    dear = replace(PRICES, step=2.0)  # nothing pays
    assert score(simulated(often, dear))[0] == score(simulated(seldom, dear))[0] == 1.0
    assert score(simulated(often, dear)) > score(simulated(seldom, dear))


def test_a_dialogue_is_held_out_whole(target: Runtime) -> None:
    said = [{"role": role, "content": f"text {i}"} for i, role in enumerate(["user", "assistant", "user", "assistant"])]
    found = list(Source({"messages": said}).prompts(target))
    assert [each.tokens for each in found] == [tuple(target.prompt(said[:n])) for n in (1, 3)]
    for number in range(60):
        said[0] = {"role": "user", "content": f"text {number}"}
        assert len({each.held_out for each in Source({"messages": said}).prompts(target)}) == 1
    share = sum(prompts.is_held_out(str(i)) for i in range(2000)) / 2000
    assert 0.07 < share < 0.13


def test_files_of_prompts(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\n\n two \n", "utf-8")
    (tmp_path / "b.jsonl").write_text('{"prompt": "three"}\n', "utf-8")
    found = [each.asked for each in prompts.of_files([tmp_path / "a.txt", tmp_path / "b.jsonl"])]
    users = [{"messages": [{"role": "user", "content": text}]} for text in ("one", "two")]
    assert found == [*users, {"prompt": "three"}]
    assert len(prompts.of_files([])) > 50
    (tmp_path / "empty.txt").write_text("\n")
    for name in ("empty.txt", "missing.txt", "missing.jsonl"):
        with pytest.raises(OptionError, match=name):
            prompts.of_files([tmp_path / name])


def test_remembered_chats_are_asked_again(target: Runtime, own_cache: Path) -> None:
    words = target.vocabulary
    asked = target.prompt([{"role": "user", "content": "Hello"}])
    end, answer = words.tokenize("<|im_end|>\n", special=True), words.tokenize("Hello to you")
    turn = words.tokenize("<|im_start|>user\nAnd now?<|im_end|>\n<|im_start|>assistant\n", special=True)
    EarlierTexts(fingerprint(words), words.size).add([*asked, *answer, *end, *turn, *answer])
    found = [list(each.tokens) for each in prompts.of_earlier_texts(target)]
    assert found == [asked, [*asked, *answer, *end, *turn]]


def test_some_prompts_are_trained_on_and_some_held_out() -> None:
    asked = [Prompt((1, 2), True), Prompt((3,), False), Prompt((3,), False), Prompt((4,) * 9, False)]
    assert prompts.chosen(asked, 8) == asked[:2]
    for few in (asked[:1], asked[1:]):
        with pytest.raises(OptionError, match="give more prompts"):
            prompts.chosen(few, 8)


def test_sizes_of_drafts() -> None:
    assert [parameters_of(size) for size in ("2000000", "20M", "0.5b", "1.5K")] == [
        2_000_000,
        20_000_000,
        500_000_000,
        1500,
    ]
    for wrong in ("", "M", "0", "-1M", "1T"):
        with pytest.raises(OptionError, match=r"20M or 0\.5B"):
            parameters_of(wrong)
    width, layers = shape(20_000_000, 4096)
    assert (width, layers) == (576, 4)  # the next one, 640 and 5, would be 27 million
    with pytest.raises(OptionError, match="the least is"):
        shape(10_000, 4096)


def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    wanted = Wanted([Prompt((1,) * 10, False)] * 5, (0.0,), 1, 100)
    small = estimate.estimated(estimate.Student(1000, 100, 8, 1), wanted, Training(), 0.01)
    assert small.tokens == 500
    assert small.answering == pytest.approx(5.0)
    assert small.trained == 550 * 3
    assert small.answered == pytest.approx(500 / 550)
    small.require(tmp_path, 1 << 30)
    with pytest.raises(EngineError, match="not enough memory"):
        small.require(tmp_path, 1000)
    with pytest.raises(OptionError, match="not enough space"):
        replace(small, disk=1 << 60).require(tmp_path, 1 << 30)
    assert "500 tokens of answers in 5 s, training 33 s" in small.line(0.02)


@pytest.mark.parametrize(("answered", "answer"), [(0.25, 64), (1.0, 254), (0.0, 2)])
def test_the_step_that_is_timed_has_the_share_of_answers(answered: float, answer: int) -> None:
    """Heads compute less for prompts; an answer and a prompt of two tokens there are always."""
    seen: list[Example] = []

    class Watched:
        def loss(self, examples: list[Example], _: float) -> SimpleNamespace:
            seen.extend(examples)
            return SimpleNamespace(backward=lambda: None)

    assert estimate.training_pace(cast(Any, Watched()), answered, row=6) >= 0
    assert len(seen) == 2
    for timed in seen:
        assert len(timed.tokens) - timed.start == len(timed.likely) == answer
        assert timed.rows is not None
        assert timed.rows.shape == (len(timed.tokens), 6)


def test_wrong_options_are_one_line(tmp_path: Path, small_pair: dict[str, Path]) -> None:
    out = ("--out", tmp_path / "out")
    assert "not both" in refused(run("distill", small_pair["target"], tmp_path, "--from-scratch", "1M", *out))
    assert "no draft is known" in refused(run("distill", small_pair["target"], "--collect", *out))
    assert "missing.txt" in refused(
        run("distill", small_pair["target"], "--collect", "--prompts", tmp_path / "missing.txt", *out)
    )
    assert not (tmp_path / "out" / "pair.json").exists()


def test_a_medusa_head_without_onnx_is_refused_before_anything_is_collected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edgespec.extras.find_spec", lambda package: None if package == "onnx" else package)
    given: dict[str, Any] = dict.fromkeys(field.name for field in fields(DistillOptions))
    with pytest.raises(MissingPackage, match=r"a Medusa head needs the package onnx.*pip install 'edgespec\[onnx\]'"):
        command.distill(DistillOptions(**{**given, "head": "medusa", "out": tmp_path / "pair"}))
    assert not (tmp_path / "pair").exists()
