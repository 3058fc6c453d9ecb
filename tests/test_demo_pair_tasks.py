"""The texts and tasks that the demo pair is trained on: right answers, and nothing held out is trained on."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path

import pytest

import edgespec
from benchmarks.demo_pair import abilities, kit, sources, vocabulary
from benchmarks.demo_pair.tasks import TASKS, Maker, Texts
from edgespec import Device, models

WHOLE = "Anna Berg painted 12 boats near Oslo , and she sold 3 ."
SENTENCES = f"{WHOLE}\tAnna Berg painted 12 boats near Oslo . <::::> She sold 3 ."


def checkouts(folder: Path) -> Path:
    """The five repositories, with a text or two each."""
    wiki = folder / "wiki-split"
    wiki.mkdir(parents=True)
    for number, name in enumerate(("tune", "validation", "test")):
        (wiki / f"{name}.tsv").write_text(SENTENCES.replace("12", str(40 + number)) + "\n", "utf-8")
    for split in ("train", "test"):
        text = f"I want a table in {split.title()} City."
        slot = {"slot": "city", "start": text.index(split.title()), "exclusive_end": len(text) - 1}
        turns = [
            {"speaker": "USER", "utterance": text, "frames": [{"slots": [slot]}]},
            {"speaker": "SYSTEM", "utterance": "For how many? And when would Paris suit you?", "frames": []},
            {"speaker": "USER", "utterance": "For two.", "frames": []},
        ]
        place = folder / "dstc8-schema-guided-dialogue" / split
        place.mkdir(parents=True)
        (place / "dialogues_001.json").write_text(json.dumps([{"turns": turns}]), "utf-8")
    qna = folder / "botframework-cli" / "packages" / "qnamaker" / "docs" / "qnaFormat" / "english"
    qna.mkdir(parents=True)
    asked = "\n".join(f"- Hello number {number}" for number in range(40))
    (qna / "qna_chitchat_friendly.qna").write_text(f"> x\n\n# ? Hello\n{asked}\n\n```markdown\nHi.\n```\n", "utf-8")
    english = folder / "chatterbot-corpus" / "chatterbot_corpus" / "data" / "english"
    english.mkdir(parents=True)
    for name in sources._CHATTER:
        (english / f"{name}.yml").write_text(f"- - What is {name}?\n  - No idea.\n  - Sure?\n", "utf-8")
    return folder


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("demo")
    kit.write_kit(checkouts(folder / "checkouts"), folder / "kit")
    return folder / "kit"


@pytest.fixture(scope="module")
def train(made: Path) -> Texts:
    return kit.kit_texts(made, "train")


def test_nothing_held_out_is_trained_on(made: Path, train: Texts) -> None:
    held = kit.kit_texts(made, "held")
    assert {question["question"] for question in held.talk}.isdisjoint(question["question"] for question in train.talk)
    assert held.talk
    assert "42 boats" in str(held.passages)
    assert "42 boats" not in str(train.passages)
    assert "Test City" in str(held.slots)
    assert "Test City" not in str((train.slots, train.passages))


def test_sentences_are_written_as_people_write_them(made: Path) -> None:
    texts = [each["text"] for each in kit.records(made, "sentences", "train")]
    assert texts == [f"Anna Berg painted {number} boats near Oslo, and she sold 3." for number in (40, 41)]


def test_dialogues_begin_with_the_user_and_end_with_the_assistant() -> None:
    turns = [(False, "Hi."), (True, "One"), (True, "two"), (False, "Three"), (True, "four")]
    said = [{"role": "user", "content": "One two"}, {"role": "assistant", "content": "Three"}]
    assert sources.messages(turns) == said


@pytest.mark.parametrize("task", TASKS)
def test_an_answer_is_what_was_asked_for(task: str, train: Texts) -> None:
    maker = Maker(train, random.Random(task), 1, 60)  # noqa: S311 - no secret
    for case in [maker.case(task) for _ in range(60)]:
        asked, _, text = case.prompt.partition("\n")
        if task == "repeat":
            assert case.answer == text
        elif task == "rewrite":
            assert case.answer != text
            changed = set(case.answer.split()) - set(text.split())
            assert all(word.strip(".,?:") in asked for word in changed)
        elif task in {"quote", "summarise"}:
            assert case.answer in text
            assert case.answer != text
        elif task == "json":
            assert all(value in text for value in json.loads(case.answer).values())
        elif task == "list":
            assert len(case.answer.split(", ")) == 3
        else:
            assert case.answer in {"Hi.", "No idea."}


def test_rouge_l_is_the_f_measure_of_the_longest_common_subsequence() -> None:
    assert abilities.rouge_l(["a", "b", "c", "d"], ["a", "x", "c", "d"]) == pytest.approx(0.75)
    assert abilities.rouge_l(["a", "b"], ["b", "a"]) == pytest.approx(0.5)
    assert abilities.rouge_l(["a"], []) == 0.0


def test_a_tokenizer_keeps_every_text(tmp_path: Path) -> None:
    made = vocabulary.train(["to be or not to be"] * 3, 280)
    vocabulary.write(made, tmp_path)
    text = "Ünï to be\n 12"
    assert made.decode(made.encode(text).ids) == text
    assert made.encode("<|im_end|>").ids == [2]
    assert "<|im_start|>" in json.loads((tmp_path / "tokenizer_config.json").read_text())["chat_template"]


def test_a_model_is_asked_all_tasks_in_the_ordinary_runtime(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(abilities, "SHORTEST", 1)  # the passage here is a short one
    held = kit.kit_texts(made, "held")
    with edgespec.load(models.demo().target, device=Device(512, 1)) as runtime:
        found = list(abilities.abilities(runtime, held, 1))
        (case,) = abilities.held_cases(held, TASKS[0], 1)
        said = abilities._answer(runtime, case)
    assert [each.task for each in found] == [*TASKS]
    assert all(0 <= each.exact <= 1 and each.cases == 1 for each in found)
    assert len(said) > 1
    assert abilities.score(replace(case, answer=said), said) == (True, 1.0)
