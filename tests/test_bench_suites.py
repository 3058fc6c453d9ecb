"""Suites: the field's formats, and lines that are broken."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from edgespec.bench import suites
from edgespec.errors import OptionError

GOOD = {"question_id": 81, "category": "writing", "turns": ["Write a poem.", "And another."], "reference": ["x", "y"]}


def written(tmp_path: Path, *lines: object) -> str:
    path = tmp_path / "questions.jsonl"
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines), "utf-8")
    return str(path)


def test_mt_bench(tmp_path: Path) -> None:
    suite = suites.read(written(tmp_path, GOOD, "", {**GOOD, "question_id": "b", "category": "math"}))
    assert [(q.id, q.category, q.turns) for q in suite.questions] == [
        ("81", "writing", ("Write a poem.", "And another.")),
        ("b", "math", ("Write a poem.", "And another.")),
    ]
    assert not suite.problems
    assert suite.questions[0].replay == (), "MT-bench's references are for judges"


def test_spec_bench_counts_mt_bench_as_one(tmp_path: Path) -> None:
    kinds = ("writing", "math", "translation", "rag")
    lines = [{**GOOD, "question_id": i, "category": kind} for i, kind in enumerate(kinds)]
    assert suites.read(written(tmp_path, *lines)).categories == {"mt_bench": 2, "translation": 1, "rag": 1}


def test_a_limit_is_of_each_category(tmp_path: Path) -> None:
    lines = [{**GOOD, "question_id": i, "category": "ab"[i % 2]} for i in range(9)]
    suite = suites.read(written(tmp_path, *lines))
    assert [question.id for question in suite.limited(2).questions] == ["0", "1", "2", "3"]
    assert suite.limited(None) == suite


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ('{"question_id": 1', "it is not JSON"),
        ("[" * 100_000, "it is not JSON"),
        ("[1]", "it is no object"),
        ({**GOOD, "question_id": None}, "question_id is None"),
        ({**GOOD, "question_id": True}, "question_id is True"),
        ({**GOOD, "category": " "}, "category is ' '"),
        ({**GOOD, "turns": "Write."}, "turns is not a list"),
        ({**GOOD, "turns": []}, "it has 0 turns"),
        ({**GOOD, "turns": ["a", " "]}, "turns is not a list of texts"),
        ({**GOOD, "replay": ["a"]}, "it has 2 turns and 1 replayed answers"),
        ({**GOOD, "replay": None}, "replay is not a list"),
        (GOOD, "question_id 81 stands on an earlier line too"),
    ],
)
def test_a_broken_line_is_told_and_the_rest_goes_on(line: object, says: str, tmp_path: Path) -> None:
    suite = suites.read(written(tmp_path, GOOD, line, {**GOOD, "question_id": 83}))
    assert [question.id for question in suite.questions] == ["81", "83"]
    (problem,) = suite.problems
    assert problem.where.endswith("questions.jsonl, line 2")
    assert says in problem.what
    assert "expected" in problem.what


@pytest.mark.parametrize("text", ["", "\n\n", "{}\n"])
def test_a_suite_without_questions(text: str, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="holds no question"):
        suites.read(written(tmp_path, text))


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="one of demo, replay"):
        suites.read(str(tmp_path / "none.jsonl"))
    with pytest.raises(OptionError, match="cannot be read"):
        suites.read(str(tmp_path))
    (tmp_path / "latin.jsonl").write_bytes(b'{"question_id": "\xe9"}')
    with pytest.raises(OptionError, match="cannot be read"):
        suites.read(str(tmp_path / "latin.jsonl"))


def test_the_bundled_ones() -> None:
    assert suites.bundled() == ["demo", "replay"]
    demo, replay = suites.read("demo"), suites.read("replay")
    assert not [*demo.problems, *replay.problems]
    kinds = ("dialogue", "talk", "repeat", "rewrite", "quote", "summarise", "list", "json")
    assert demo.categories == dict.fromkeys(kinds, 16)
    assert not any(question.replay for question in demo.questions)
    assert len(replay.questions) >= 40
    assert all(question.replay for question in replay.questions)
    assert demo.digest != replay.digest
