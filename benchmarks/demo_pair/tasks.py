"""Tasks made by code from texts: what is asked, and the one right answer.

repeat      a text, word for word
rewrite     a text with one word, name or number replaced wherever it stands
quote       the first or last sentence of a text, or the one that has a given word
summarise   a text of several sentences by its first one
list        the next three members of a list
json        the values of a sentence under given keys
talk        small talk
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from dataclasses import dataclass, field

from .sources import Record

TASKS = ("repeat", "rewrite", "quote", "summarise", "list", "json", "talk")
_WEIGHT = 6  # of a sentence of Wikipedia against a turn of a dialogue
_ENDS = re.compile(r"(?<=[.!?]) +(?=[A-Z])")
_NAME = re.compile(r"(?<=[a-z,] )[A-Z][a-z]{2,}\b")
_NUMBER = re.compile(r"\b\d{1,4}\b")
_WORD = re.compile(r"\b[a-z]{4,}\b")


@dataclass(frozen=True)
class Case:
    """What the user says, and the right answer."""

    task: str
    prompt: str
    answer: str


@dataclass(frozen=True)
class Texts:
    """What cases are made from, all of one split. `words` is where replacements come from."""

    passages: list[list[str]]  # each a list of sentences
    slots: list[Record]
    talk: list[Record]
    names: list[str] = field(default_factory=list)
    words: list[str] = field(default_factory=list)


def texts(sentences: list[Record], dialogues: list[Record], talk: list[Record]) -> Texts:
    """Passages of one to three sentences: of Wikipedia, and turns of dialogues."""
    passages = [form for each in sentences for form in ([each["text"]], each["parts"])] * _WEIGHT
    for dialogue in dialogues:
        passages += [parts for turn in dialogue["messages"] if 1 <= len(parts := _ENDS.split(turn["content"])) <= 3]
    whole = [" ".join(parts) for parts in passages]
    names = sorted({name for text in whole for name in _NAME.findall(text)})
    words = sorted({word for text in whole[::7] for word in _WORD.findall(text)})
    return Texts(passages, [slot for each in dialogues for slot in each["slots"]], talk, names, words)


class Maker:
    """Makes cases by a random generator; passages have between `shortest` and `longest` words."""

    def __init__(self, source: Texts, rng: random.Random, shortest: int = 6, longest: int = 60) -> None:
        self._source, self._rng = source, rng
        self.shortest, self.longest = shortest, longest
        self._makers: dict[str, Callable[[], Case | None]] = {
            "repeat": self._repeat,
            "rewrite": self._rewrite,
            "quote": self._quote,
            "summarise": self._summarise,
            "list": self._list,
            "json": self._json,
            "talk": self._talk,
        }

    def case(self, task: str) -> Case:
        """A case of `task`: texts are drawn until one fits."""
        while True:
            made = self._makers[task]()
            if made is not None:
                return made

    def _passage(self, least: int = 1) -> list[str] | None:
        parts = self._rng.choice(self._source.passages)
        while len(parts) < least:
            parts = parts + self._rng.choice(self._source.passages)
        size = sum(len(part.split()) for part in parts)
        return parts if self.shortest <= size <= self.longest else None

    def _repeat(self) -> Case | None:
        parts = self._passage()
        if parts is None:
            return None
        text = self._noise() if self._rng.random() < 0.15 else " ".join(parts)
        asked = self._rng.choice(
            ("Repeat this text exactly:", "Say this again, word for word:", "Copy the following text:", "Repeat:")
        )
        return Case("repeat", f"{asked}\n{text}", text)

    def _noise(self) -> str:
        """Words without sense: only copying gets them right."""
        drawn = [self._rng.choice(self._source.words) for _ in range(self._rng.randint(min(self.shortest, 20), 20))]
        return " ".join(drawn)

    def _rewrite(self) -> Case | None:
        parts = self._passage()
        if parts is None:
            return None
        text = " ".join(parts)
        pattern, others = self._rng.choice(
            ((_NAME, self._source.names), (_NUMBER, None), (_WORD, self._source.words), (_NAME, self._source.names))
        )
        found = pattern.findall(text)
        if not found:
            return None
        old = self._rng.choice(found)
        new = str(self._rng.randint(2, 2030)) if others is None else self._rng.choice(others)
        answer, count = re.subn(rf"\b{re.escape(old)}\b", new, text)
        if old == new or new in text or count > 3:
            return None
        asked = self._rng.choice(
            (
                f"Rewrite this text, with {old} changed to {new}:",
                f"Replace {old} with {new}:",
                f"Change {old} to {new}:",
                f"Rewrite and replace {old} with {new}:",
            )
        )
        return Case("rewrite", f"{asked}\n{text}", answer)

    def _quote(self) -> Case | None:
        parts = self._passage(least=2)
        if parts is None:
            return None
        kind = self._rng.choice(("first", "last", "word"))
        answer = parts[0] if kind == "first" else parts[-1]
        asked = f"Quote the {kind} sentence of this text:"
        if kind == "word":
            answer = self._rng.choice(parts)
            own = [word for word in _WORD.findall(answer) if sum(word in part for part in parts) == 1]
            if not own:
                return None
            asked = f'Quote the sentence with the word "{self._rng.choice(own)}":'
        return Case("quote", f"{asked}\n{' '.join(parts)}", answer)

    def _summarise(self) -> Case | None:
        parts = self._passage(least=2)
        if parts is None:
            return None
        asked = self._rng.choice(("Summarise this text in one sentence:", "Sum this up:", "Give the main point:"))
        return Case("summarise", f"{asked}\n{' '.join(parts)}", parts[0])

    def _list(self) -> Case:
        series = self._series()
        shown = self._rng.randint(3, 5)
        asked = self._rng.choice(("Continue this list:", "What comes next?", "Go on with three more:"))
        return Case("list", f"{asked}\n{', '.join(series[:shown])}", ", ".join(series[shown : shown + 3]))

    def _series(self) -> list[str]:
        kind = self._rng.randrange(4)
        if kind == 0:
            start, step = self._rng.randint(0, 60), self._rng.choice((1, 2, 3, 5, 10))
            return [str(start + step * number) for number in range(8)]
        if kind == 1:
            ring = self._rng.choice(_RINGS)
            start = self._rng.randrange(len(ring))
            return [ring[(start + number) % len(ring)] for number in range(8)]
        words = self._rng.sample(self._source.words, self._rng.randint(2, 3))
        return [words[number % len(words)] for number in range(8)]

    def _json(self) -> Case | None:
        slot = self._rng.choice(self._source.slots)
        if len(slot["text"].split()) > self.longest:
            return None
        keys = ", ".join(slot["values"])
        asked = self._rng.choice((f"Give {keys} as JSON:", f"Extract {keys} as JSON from this sentence:"))
        return Case("json", f"{asked}\n{slot['text']}", json.dumps(slot["values"], ensure_ascii=False))

    def _talk(self) -> Case:
        each = self._rng.choice(self._source.talk)
        return Case("talk", each["question"], each["answer"])


_RINGS = (
    ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"),
    [
        "January",
        "February",
        "March",
        "April",
        "May",
        "June",
        "July",
        "August",
        "September",
        "October",
        "November",
        "December",
    ],
    [chr(65 + number) for number in range(26)],
    ("north", "east", "south", "west"),
    ("spring", "summer", "autumn", "winter"),
)
