"""The data of a run, and its JSON."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

from ..errors import OptionError
from ..values import instance, real, whole

R = TypeVar("R")
_LARGEST = 1e15  # the largest number accepted; JSON can have larger ones than float
PLAIN, OURS = "plain", "edgespec"  #: the two contenders of every run


class Burst(NamedTuple):
    """Tokens that came together, `seconds` after the request."""

    seconds: float
    tokens: int


class Depth(NamedTuple):
    """The guesses of a drafter at one depth of its drafts: how many, and how many were accepted."""

    drafted: int
    accepted: int


class Pass(NamedTuple):
    """A round of speculation: tokens drafted (K), accepted and committed, and its seconds."""

    drafted: int
    accepted: int
    tokens: int
    seconds: float


class Stretch(NamedTuple):
    """A part of an answer. `kind`: own (the target's token), accepted or rejected."""

    text: str
    kind: str


@dataclass(frozen=True, slots=True)
class AnswerRecord:
    """The answer of one contender to one turn of a question.

    Args:
        turn: from 0.
        prompt: tokens of the prompt.
        text: the answer; empty where it was replayed from the suite.
        tokens: of the answer, without one that ends the turn.
        digest: a hash of the tokens, to compare contenders by; empty where a peer does not report its tokens.
        seconds: from the request to the end.
        prompt_seconds: the part of `seconds` until all tokens of the prompt but the last were evaluated; None where the
            engine does not report it and it cannot be estimated.
        bursts: the times of tokens.
        passes: the rounds, where known.
        depths: by drafter, its guesses at depth 1, 2, ..., drafted and accepted.
        strip: the text by origin, where known.
        joules: energy of the processors meanwhile, where the system reports it.
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
        """Seconds without those of the prompt; None where the latter are not known."""
        return None if self.prompt_seconds is None else self.seconds - self.prompt_seconds

    @property
    def first(self) -> float | None:
        """Seconds to the first token; None without tokens."""
        return self.bursts[0].seconds if self.bursts else None

    @property
    def gaps(self) -> list[float]:
        """Seconds between consecutive tokens; 0 within a burst."""
        found: list[float] = []
        for i, burst in enumerate(self.bursts):
            if i:
                found.append(burst.seconds - self.bursts[i - 1].seconds)
            found += [0.0] * (burst.tokens - 1)
        return found

    @classmethod
    def of(cls, kept: Mapping[str, Any]) -> AnswerRecord:
        """An answer from the JSON of `as_dict`.

        Raises:
            ValueError: malformed JSON.
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
    """A function that reads a list of rows with these columns."""
    return lambda rows: tuple(kind(*(read(v) for read, v in zip(columns, row, strict=True))) for row in rows)


_depths = _rows(Depth, _count, _count)
#: Readers of the fields of an answer from JSON; they raise OptionError, TypeError, ValueError or AttributeError.
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
    """A problem of a run, and where: in a line of the suite, a question, or a contender."""

    where: str
    what: str


@dataclass(frozen=True, slots=True)
class ContenderEntry:
    """A contender that took part, or was left out for the reason `skipped`. `memory`: its process's peak in bytes."""

    name: str
    title: str
    peer: bool
    skipped: str = ""
    memory: int | None = None


@dataclass(frozen=True, slots=True)
class PassPrices:
    """The seconds of passes of the target over 1, 2, ... tokens, and of a step of the draft model."""

    passes: tuple[float, ...]
    step: float | None


@dataclass(frozen=True, slots=True)
class Run:
    """The data of a whole run.

    Args:
        about: descriptions by name: date, command, machine, versions, models, settings.
        questions: the number of questions by category.
    """

    about: Mapping[str, str]
    suite: str
    questions: Mapping[str, int]
    contenders: Sequence[ContenderEntry]
    prices: PassPrices | None
    answers: Sequence[AnswerRecord]
    problems: Sequence[Problem] = ()
    interrupted: bool = False

    @classmethod
    def of(cls, kept: Mapping[str, Any]) -> Run:
        """A run from the JSON of `as_dict`."""
        prices = kept["prices"]
        values = {
            "contenders": tuple(ContenderEntry(**each) for each in kept["contenders"]),
            "prices": prices and PassPrices(tuple(prices["passes"]), prices["step"]),
            "answers": tuple(AnswerRecord.of(each) for each in kept["answers"]),
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

    def by(self, contender: str, *, category: str | None = None) -> list[AnswerRecord]:
        """The answers of one contender, in a category or in all."""
        return [a for a in self.answers if a.contender == contender and category in (None, a.category)]

    @property
    def categories(self) -> list[str]:
        """The categories with answers, in the suite's order."""
        said = {answer.category for answer in self.answers}
        return [category for category in self.questions if category in said]

    @property
    def typical(self) -> AnswerRecord | None:
        """The answer of edgespec of median length among those with drafts, free ones preferred, as an example."""
        drafted = [answer for answer in self.by(OURS) if any(each.drafted for each in answer.passes)]
        shown = [answer for answer in drafted if not answer.replayed] or drafted
        return sorted(shown, key=lambda answer: answer.tokens)[len(shown) // 2] if shown else None
