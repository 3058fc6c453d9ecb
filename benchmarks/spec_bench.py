"""Spec-Bench's questions with answers to replay, for `benchmarks.methods` and `edgespec bench --suite`.

    git clone https://github.com/hemingkx/Spec-Bench
    python -m benchmarks.spec_bench Spec-Bench/data/spec_bench/question.jsonl OUT.jsonl [--answers ANSWERS.jsonl]

Spec-Bench (Xia et al. 2024) has 480 questions and no answers of models. ANSWERS are those of a model in the form that
its scripts and FastChat write: {"question_id": 81, "choices": [{"turns": ["...", "..."]}]}. Without them, or where a
question has none, its `reference` is replayed: what people wrote, for judges, so it is shorter than a model's answer.
References are those of translation, summarization, mathematics (its marks of calculations are removed) and RAG (the
short answers, joined by commas), and of 31 of the 80 questions of MT-bench. The target answers the others by itself.

The questions are of several sources with terms of their own, so none come with edgespec.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from .dialogues import FILE

Line = dict[str, Any]
_CALCULATION = re.compile(r"<<.*?>>")  # of GSM8K


def joined(questions: Sequence[Line], answers: Mapping[str, Sequence[str]]) -> Iterator[Line]:
    """The questions, those that have an answer for each turn with it as `replay`."""
    for question in questions:
        texts = answers.get(str(question["question_id"])) or references(question)
        whole = len(texts) == len(question["turns"]) and all(text.strip() for text in texts)
        kept = {key: question[key] for key in ("question_id", "category", "turns")}
        yield {**kept, "replay": list(texts)} if whole else kept


def references(question: Line) -> list[str]:
    """The references of a question's turns; short answers of one turn are joined."""
    found = question.get("reference") or []
    texts = [", ".join(each) if isinstance(each, list) else str(each) for each in found]
    if len(question["turns"]) == 1 and len(texts) > 1:
        texts = [", ".join(texts)]
    return [_CALCULATION.sub("", text) for text in texts]


def answers_of(lines: Sequence[Line]) -> dict[str, list[str]]:
    """The first choice of each question."""
    return {str(line["question_id"]): [str(turn) for turn in line["choices"][0]["turns"]] for line in lines}


def _read(path: Path) -> list[Line]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines() if line.strip()]


@click.command()
@click.argument("questions", type=FILE)
@click.argument("output", type=click.Path(path_type=Path))
@click.option("--answers", type=FILE, help="Answers of a model, in FastChat's form")
def main(questions: Path, output: Path, answers: Path | None) -> None:
    """Join QUESTIONS with answers, into OUTPUT."""
    asked = _read(questions)
    found = list(joined(asked, answers_of(_read(answers)) if answers is not None else {}))
    output.write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in found), encoding="utf-8")
    kinds = Counter(line["category"] for line in found if "replay" in line)
    replayed = ", ".join(f"{kind} {n}" for kind, n in kinds.items())
    click.echo(f"{kinds.total()} of {len(found)} questions have answers to replay: {replayed}")


if __name__ == "__main__":
    main()
