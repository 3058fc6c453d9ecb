"""Answers in figures, and the JSON that they are kept as."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

from ..errors import OptionError
from ..values import instance, real, whole

R = TypeVar("R")
_LARGEST = 1e15  # of a number: JSON has some that no float holds, and NaN
PLAIN, OURS = "plain", "edgespec"  #: the two contenders that every run has


class Burst(NamedTuple):
    """Tokens that came together, `seconds` after the prompt was handed over."""

    seconds: float
    tokens: int


class Depth(NamedTuple):
    """Of the tokens that a drafter guessed at one depth of its drafts: how many, and how many were accepted."""

    drafted: int
    accepted: int


class Pass(NamedTuple):
    """A round of speculation: tokens drafted (K), accepted and committed, and the seconds it took in all."""

    drafted: int
    accepted: int
    tokens: int
    seconds: float


class Stretch(NamedTuple):
    """A stretch of an answer. `kind`: own (the target's), accepted or rejected."""

    text: str
    kind: str


@dataclass(frozen=True, slots=True)
class Answer:
    """What one contender made of one turn of a question.

    Args:
        turn: from 0.
        prompt: tokens of the prompt.
        text: what was said; empty where it was replayed from the suite.
        tokens: said, without one that ends the turn.
        digest: names the tokens, so that contenders can be compared; empty where a peer does not tell its tokens.
        seconds: from handing the prompt over to the end.
        prompt_seconds: of these, until all of the prompt but its last token was computed; None where the engine does
            not tell and its tokens do not show it.
        bursts: when tokens came.
        passes: the rounds, where it is known.
        depths: by drafter, what became of its guesses at depth 1, 2, ...
        strip: the text by origin, where it is known.
        joules: energy that the processor took meanwhile, where the system tells.
    """

    question: str
    category: str
    turn: int
    contender: str
    replayed: bool
    prompt: int
    text: str
    tokens: int
    digest: str
    seconds: float
    prompt_seconds: float | None
    bursts: tuple[Burst, ...] = ()
    passes: tuple[Pass, ...] = ()
    depths: Mapping[str, tuple[Depth, ...]] = field(default_factory=dict)
    strip: tuple[Stretch, ...] = ()
    joules: float | None = None

    @property
    def decoding(self) -> float | None:
        """Seconds without those of the prompt; None where these are not known."""
        return None if self.prompt_seconds is None else self.seconds - self.prompt_seconds

    @property
    def first(self) -> float | None:
        """Seconds to the first token; None where none came."""
        return self.bursts[0].seconds if self.bursts else None

    @property
    def gaps(self) -> list[float]:
        """Seconds between a token and the one before it, the first left out: 0 for those that came together."""
        found: list[float] = []
        for i, burst in enumerate(self.bursts):
            if i:
                found.append(burst.seconds - self.bursts[i - 1].seconds)
            found += [0.0] * (burst.tokens - 1)
        return found

    @classmethod
    def of(cls, kept: Mapping[str, Any]) -> Answer:
        """From what `as_dict` gave, by way of JSON.

        Raises:
            ValueError: it did not give this.
        """
        if not isinstance(kept, Mapping) or kept.keys() != _FORM.keys():
            raise ValueError("these are not the fields of an answer")
        try:
            return cls(**{name: read(kept[name]) for name, read in _FORM.items()})
        except (OptionError, TypeError, AttributeError) as error:
            raise ValueError(f"this is no answer: {error}") from error

    def as_dict(self) -> dict[str, Any]:
        """What JSON takes."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}


def _count(value: Any) -> int:
    return whole("a count", value, 0, 1 << 53)


def _number(value: Any) -> float:
    return real("a number", value, -_LARGEST, _LARGEST)


def _text(value: Any) -> str:
    return instance("a text", value, str)


def _rows(kind: Callable[..., R], *columns: Callable[[Any], Any]) -> Callable[[Any], tuple[R, ...]]:
    """What reads a list of rows of these columns."""
    return lambda rows: tuple(kind(*(read(v) for read, v in zip(columns, row, strict=True))) for row in rows)


_depths = _rows(Depth, _count, _count)
#: What reads each field of an answer from JSON; it raises OptionError, TypeError, ValueError or AttributeError.
_FORM: Mapping[str, Callable[[Any], Any]] = {
    **dict.fromkeys(("question", "category", "contender", "text", "digest"), _text),
    **dict.fromkeys(("turn", "prompt", "tokens"), _count),
    "seconds": _number,
    "replayed": lambda value: instance("replayed", value, bool),
    "bursts": _rows(Burst, _number, _count),
    "passes": _rows(Pass, _count, _count, _count, _number),
    "depths": lambda found: {_text(name): _depths(rows) for name, rows in found.items()},
    "strip": _rows(Stretch, _text, _text),
    **dict.fromkeys(("prompt_seconds", "joules"), lambda value: None if value is None else _number(value)),
}


class Problem(NamedTuple):
    """What went wrong, and where: a line of the suite, a question, a contender."""

    where: str
    what: str


@dataclass(frozen=True, slots=True)
class Taking:
    """A contender that took part, or was left out for a reason. `memory` is its process's peak in bytes."""

    name: str
    title: str
    peer: bool
    skipped: str = ""
    memory: int | None = None


@dataclass(frozen=True, slots=True)
class Priced:
    """What passes of the target over 1, 2, ... tokens cost, in seconds, and a step of the draft model."""

    passes: tuple[float, ...]
    step: float | None


@dataclass(frozen=True, slots=True)
class Run:
    """All of a run.

    Args:
        about: what can be said in a line each, by name: date, command, machine, versions, models, settings.
        questions: by category, how many questions were asked for.
    """

    about: Mapping[str, str]
    suite: str
    questions: Mapping[str, int]
    contenders: Sequence[Taking]
    prices: Priced | None
    answers: Sequence[Answer]
    problems: Sequence[Problem] = ()
    interrupted: bool = False

    @classmethod
    def of(cls, kept: Mapping[str, Any]) -> Run:
        """From what `as_dict` gave, by way of JSON."""
        prices = kept["prices"]
        values = {
            "contenders": tuple(Taking(**each) for each in kept["contenders"]),
            "prices": prices and Priced(tuple(prices["passes"]), prices["step"]),
            "answers": tuple(Answer.of(each) for each in kept["answers"]),
            "problems": tuple(Problem(*each) for each in kept["problems"]),
        }
        return cls(**{**kept, **values})

    def as_dict(self) -> dict[str, Any]:
        """What JSON takes."""
        return {
            "about": dict(self.about),
            "suite": self.suite,
            "questions": dict(self.questions),
            "contenders": [dataclasses.asdict(each) for each in self.contenders],
            "prices": dataclasses.asdict(self.prices) if self.prices else None,
            "answers": [answer.as_dict() for answer in self.answers],
            "problems": list(self.problems),
            "interrupted": self.interrupted,
        }

    def by(self, contender: str, *, category: str | None = None) -> list[Answer]:
        """The answers of one contender, in a category or in all."""
        return [a for a in self.answers if a.contender == contender and category in (None, a.category)]

    @property
    def categories(self) -> list[str]:
        """Those that were answered, in the suite's order."""
        said = {answer.category for answer in self.answers}
        return [category for category in self.questions if category in said]

    @property
    def typical(self) -> Answer | None:
        """Our answer of median length that shows drafts, to look at; a replayed one where no other does."""
        drafted = [answer for answer in self.by(OURS) if any(each.drafted for each in answer.passes)]
        shown = [answer for answer in drafted if not answer.replayed] or drafted
        return sorted(shown, key=lambda answer: answer.tokens)[len(shown) // 2] if shown else None
