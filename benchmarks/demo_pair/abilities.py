"""What a finished model can do, in the ordinary runtime: 100 held-out cases of each task.

A case counts as exact if the greedy answer is the right one, character for character; ROUGE-L is the F-measure of the
longest common subsequence of words (Lin 2004), for answers that may be right in other words.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

from edgespec import Runtime, Sampling, Text

from .tasks import TASKS, Case, Maker, Texts

SHORTEST, LONGEST = 8, 30  # words of a passage


@dataclass(frozen=True)
class Ability:
    """Of `cases` answers of a task: the share that is exact, and the mean ROUGE-L (0 to 1)."""

    task: str
    cases: int
    exact: float
    rouge: float


def held_cases(held: Texts, task: str, count: int) -> list[Case]:
    """The same cases for every model."""
    maker = Maker(held, random.Random(f"measure {task}"), SHORTEST, LONGEST)  # noqa: S311 - no secret
    return [maker.case(task) for _ in range(count)]


def abilities(runtime: Runtime, held: Texts, count: int) -> Iterator[Ability]:
    """Ask `count` cases of each task, greedily."""
    for task in TASKS:
        scores = [score(case, _answer(runtime, case)) for case in held_cases(held, task, count)]
        exact, rouge = (sum(each) / len(scores) for each in zip(*scores, strict=True))
        yield Ability(task, count, exact, rouge)


def _answer(runtime: Runtime, case: Case) -> str:
    events = runtime.chat([{"role": "user", "content": case.prompt}], Sampling(), max_tokens=256)
    return "".join(event.text for event in events if isinstance(event, Text))


def score(case: Case, answer: str) -> tuple[bool, float]:
    """Whether the answer is exact, and its ROUGE-L against the right one."""
    return answer.strip() == case.answer.strip(), rouge_l(case.answer.split(), answer.split())


def rouge_l(reference: list[str], answer: list[str]) -> float:
    """The F-measure of the longest common subsequence, 0 to 1."""
    if not reference or not answer:
        return 0.0
    row = [0] * (len(answer) + 1)
    for word in reference:
        above = 0
        for place, other in enumerate(answer, 1):
            above, row[place] = row[place], above + 1 if word == other else max(row[place], row[place - 1])
    return 2 * row[-1] / (len(reference) + len(answer))
