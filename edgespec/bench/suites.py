"""Suites of questions: lines of JSON as Spec-Bench and MT-bench have them.

    {"question_id": 81, "category": "writing", "turns": ["first question", "second one"]}

A line may have `replay`: the text of each answer, which replaces the target's own choices while its passes are computed
in full. That measures drafters at real cost on texts that a small model would not write. `reference`, MT-bench's
solutions for judges, is ignored.

Spec-Bench: Xia et al. 2024, "Unlocking Efficiency in Large Language Model Inference", github.com/hemingkx/Spec-Bench.
MT-bench: Zheng et al. 2023, "Judging LLM-as-a-Judge with MT-Bench and Chatbot Arena".
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from ..errors import OptionError
from ..storage.files import regular
from .records import Problem

#: Spec-Bench treats the eight categories of MT-bench as one.
_MT_BENCH = frozenset(("writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities"))
_SPEC_BENCH = frozenset(("translation", "summarization", "qa", "math_reasoning", "rag"))
_FORM = '{"question_id": 1, "category": "qa", "turns": ["a question"]}'


class _NoQuestion(Exception):
    """A malformed line; the message says what is wrong."""


@dataclass(frozen=True, slots=True)
class Question:
    """The turns of a user, and the answers to replay, if they are given."""

    id: str
    category: str
    turns: tuple[str, ...]
    replay: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Suite:
    """Questions in their file's order, and the malformed lines. `digest` is a hash of the file."""

    name: str
    digest: str
    questions: Sequence[Question]
    problems: Sequence[Problem]

    def limited(self, each: int | None) -> Suite:
        """The first `each` questions of each category; all where None."""
        seen: Counter[str] = Counter()
        kept = []
        for question in self.questions:
            seen[question.category] += 1
            if each is None or seen[question.category] <= each:
                kept.append(question)
        return Suite(self.name, self.digest, kept, self.problems)

    @property
    def categories(self) -> dict[str, int]:
        """How many questions each has, in order."""
        return dict(Counter(question.category for question in self.questions))


def bundled() -> list[str]:
    """The names of the suites that come with the package."""
    return sorted(each.name.removesuffix(".jsonl") for each in _folder().iterdir() if each.name.endswith(".jsonl"))


def read(name: str) -> Suite:
    """The bundled suite of this name, or that of a file.

    A malformed line is left out, and reported in `problems`.

    Raises:
        OptionError: no such suite, a file that cannot be read, or one without a single question.
    """
    text = (_folder() / f"{name}.jsonl").read_text("utf-8") if name in bundled() else _text(Path(name))
    questions: list[Question] = []
    problems: list[Problem] = []
    seen: set[str] = set()
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            question = _question(line)
            if question.id in seen:
                raise _NoQuestion(f"question_id {question.id} stands on an earlier line too")
        except _NoQuestion as error:
            problems.append(Problem(f"{name}, line {number}", f"{error}; expected {_FORM}: left out"))
            continue
        seen.add(question.id)
        questions.append(question)
    if not questions:
        why = f"{problems[0].where}: {problems[0].what}" if problems else "it is empty"
        raise OptionError(f"{name} holds no question ({why}); give a file of lines such as {_FORM}")
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    return Suite(Path(name).name, digest, list(_grouped(questions)), problems)


def _folder() -> Any:
    return resources.files(__package__) / "questions"


def _text(path: Path) -> str:
    try:
        return regular(path).read_text("utf-8")
    except FileNotFoundError:
        known = ", ".join(bundled())
        raise OptionError(f"no suite {path}; give a file in the form of Spec-Bench, or one of {known}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise OptionError(f"the suite {path} cannot be read: {error}; give a file of JSON lines in UTF-8") from error


def _question(line: str) -> Question:
    """Raises _NoQuestion, which says what is wrong with the line."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise _NoQuestion(f"it is not JSON ({error})") from None
    if not isinstance(found, dict):
        raise _NoQuestion("it is no object")
    identity, category = found.get("question_id"), found.get("category")
    if not isinstance(identity, str | int) or isinstance(identity, bool):
        raise _NoQuestion(f"question_id is {identity!r}, not a number or a text")
    if not isinstance(category, str) or not category.strip():
        raise _NoQuestion(f"category is {category!r}, not a text")
    turns = _texts(found, "turns")
    replay = _texts(found, "replay") if "replay" in found else ()
    if not turns or (replay and len(replay) != len(turns)):
        raise _NoQuestion(f"it has {len(turns)} turns and {len(replay)} replayed answers")
    return Question(str(identity), category.strip(), turns, replay)


def _texts(found: dict[str, Any], key: str) -> tuple[str, ...]:
    texts = found.get(key)
    if not isinstance(texts, list) or not all(isinstance(text, str) and text.strip() for text in texts):
        raise _NoQuestion(f"{key} is not a list of texts")
    return tuple(texts)


def _grouped(questions: Sequence[Question]) -> Iterator[Question]:
    """With the categories of MT-bench as one, where this is Spec-Bench."""
    whole = any(question.category in _SPEC_BENCH for question in questions)
    for question in questions:
        category = "mt_bench" if whole and question.category in _MT_BENCH else question.category
        yield Question(question.id, category, question.turns, question.replay)
