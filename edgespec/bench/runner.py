"""Who answers what, in which order; and what went wrong.

Contenders take turns answer by answer, so that a slow spell of the machine or a warm processor falls on all alike; and
each comes as often after each of the others (E. J. Williams 1949, "Experimental designs balanced for the estimation of
residual effects of treatments"), so that what one leaves behind, in caches or as heat, falls on all alike too. All are
asked the same: the history of a later turn is what plain decoding said before.
"""

from __future__ import annotations

import hashlib
import itertools
import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from ..errors import EdgespecError, Interrupted
from ..sampling import Sampling
from ..text.template import Message
from ..types import Round
from . import rounds
from .contender import Ask, Contender, ContenderFailed, Done
from .meter import Meter
from .records import PLAIN, Answer, Burst, Problem
from .suites import Question, Suite

_WARM_UP = 16  # tokens


@dataclass(frozen=True, slots=True)
class Terms:
    """What all contenders are asked alike.

    Args:
        prompt: messages to tokens.
        tokens: a text to tokens, nothing added.
        text: tokens to a text.
        context: tokens that prompt and answer may have together.
    """

    sampling: Sampling
    max_tokens: int
    context: int
    prompt: Callable[[Sequence[Message]], list[int]]
    tokens: Callable[[str], list[int]]
    text: Callable[[Sequence[int]], str]


@dataclass
class Course:
    """A run under way: what `known` holds was answered before."""

    suite: Suite
    contenders: Sequence[Contender]
    terms: Terms
    known: Sequence[Answer] = ()
    meter: Meter = field(default_factory=Meter)
    clock: Callable[[], float] = time.perf_counter

    def __post_init__(self) -> None:
        self._known = {(answer.question, answer.turn, answer.contender): answer for answer in self.known}
        self._failed: set[str] = set()
        self._turn = 0

    @property
    def total(self) -> int:
        """Answers there are to give."""
        return sum(
            len(question.turns)
            for question in self.suite.questions
            for contender in self.contenders
            if self._takes(contender, question)
        )

    def run(self) -> Iterator[Answer | Problem]:
        """The answers as they are given, and what went wrong; a contender that breaks down is left out from then on.

        Raises:
            Interrupted: a contender was told to stop.
        """
        yield from self._warm_up()
        for question in self.suite.questions:
            yield from self._question(question)

    def _warm_up(self) -> Iterator[Problem]:
        """The first answer of an engine pays for what later ones find ready."""
        question = self.suite.questions[0]
        try:
            ask = self._ask(question, 0, [{"role": "user", "content": question.turns[0]}])
        except EdgespecError:  # told when its turn comes
            return
        for contender in self.contenders:
            try:
                for _ in contender.answer(Ask(ask.prompt, ask.sampling, min(_WARM_UP, ask.max_tokens))):
                    pass
            except Interrupted:
                raise
            except EdgespecError as error:
                yield from self._told(contender, question, error)

    def _question(self, question: Question) -> Iterator[Answer | Problem]:
        messages: list[Message] = []
        for turn, asked in enumerate(question.turns):
            messages.append({"role": "user", "content": asked})
            try:
                ask = self._ask(question, turn, messages)
            except EdgespecError as error:
                yield Problem(f"question {question.id}, turn {turn + 1}", str(error))
                return
            said: str | None = None
            for contender in self._order(question):
                answer = self._known.get((question.id, turn, contender.name))
                if answer is None:
                    try:
                        answer = self._answer(contender, ask, question, turn)
                    except Interrupted:
                        raise
                    except EdgespecError as error:
                        yield from self._told(contender, question, error)
                        continue
                    yield answer
                if contender.name == PLAIN:
                    said = answer.text
            if question.replay:
                said = question.replay[turn]
            if said is None:
                return
            messages.append({"role": "assistant", "content": said})

    def _ask(self, question: Question, turn: int, messages: Sequence[Message]) -> Ask:
        terms = self.terms
        prompt = terms.prompt(messages)
        room = terms.context - len(prompt)
        replay = terms.tokens(question.replay[turn]) if question.replay else None
        if room < 1:
            raise EdgespecError(
                f"the prompt has {len(prompt)} tokens, but the context holds {terms.context} with the answer; give a "
                "larger --ctx"
            )
        most = min(room, terms.max_tokens, len(replay) if replay is not None else room)
        return Ask(prompt, terms.sampling, most, replay)

    def _order(self, question: Question) -> list[Contender]:
        taking = [each for each in self.contenders if each.name not in self._failed and self._takes(each, question)]
        found = [taking[i] for i in order(len(taking), self._turn)]
        self._turn += 1
        return found

    def _takes(self, contender: Contender, question: Question) -> bool:
        return contender.replays or not question.replay

    def _told(self, contender: Contender, question: Question, error: EdgespecError) -> Iterator[Problem]:
        if not isinstance(error, ContenderFailed):
            yield Problem(f"{contender.name}, question {question.id}", str(error))
        elif contender.name not in self._failed:
            self._failed.add(contender.name)
            contender.close()
            yield Problem(contender.name, f"{error}; it is left out from question {question.id} on")

    def _answer(self, contender: Contender, ask: Ask, question: Question, turn: int) -> Answer:
        said, bursts, known, tokens = [], [], [], list[int]()
        energy, started = self.meter.start(), self.clock()
        prompt_seconds: float | None = None
        for event in contender.answer(ask):
            seconds = self.clock() - started
            if isinstance(event, Done):
                prompt_seconds = event.prompt_seconds
                continue
            said.append(event.text)
            tokens += event.tokens or ()
            if event.count:
                bursts.append(Burst(seconds, event.count))
            if event.round is not None:
                known.append((event.round, seconds))
        seconds, joules = self.clock() - started, self.meter.joules(energy)
        count = sum(burst.tokens for burst in bursts)
        before = _prompt_seconds(bursts) if prompt_seconds is None else prompt_seconds
        return Answer(
            question=question.id,
            category=question.category,
            turn=turn,
            contender=contender.name,
            replayed=ask.replay is not None,
            prompt=len(ask.prompt),
            text="" if ask.replay is not None else "".join(said),
            tokens=count,
            digest=_digest(tokens) if len(tokens) == count else "",
            seconds=seconds,
            prompt_seconds=before,
            bursts=tuple(bursts),
            passes=rounds.passes(_lasting(known, before or 0.0)),
            depths=rounds.depths(each for each, _ in known),
            strip=rounds.strip((each for each, _ in known), self.terms.text),
            joules=joules,
        )


def order(n: int, turn: int) -> list[int]:
    """The order of `n` contenders in a turn, from 0 on: a row of a Williams square, each row once a cycle.

    In a cycle, n turns or for odd n 2n, each contender comes as often at each place, and directly after each of the
    others. The rows of a cycle are shuffled, for the first of a turn comes after the last of the turn before.
    """
    rows = [[(place + row) % n for place in _zigzag(n)] for row in range(n)]
    rows += [row[::-1] for row in rows] if n % 2 else []
    if not rows:
        return []
    cycle, at = divmod(turn, len(rows))
    random.Random(cycle).shuffle(rows)  # noqa: S311 - no secret
    return rows[at]


def _zigzag(n: int) -> list[int]:
    """0, n - 1, 1, n - 2, ...: all steps between neighbours differ."""
    return [i // 2 if i % 2 == 0 else n - 1 - i // 2 for i in range(n)]


def _digest(tokens: Sequence[int]) -> str:
    return hashlib.sha256(str(tokens).encode()).hexdigest()[:16]


def _lasting(known: Sequence[tuple[Round, float]], before: float) -> Iterator[tuple[Round, float]]:
    """Each round with what it took, of rounds with the moments they ended at."""
    for each, ended in known:
        yield each, ended - before
        before = ended


def _prompt_seconds(bursts: Sequence[Burst]) -> float | None:
    """Of an engine that does not tell: until the first token, less what a token takes; None where all came at once."""
    gaps = [b.seconds - a.seconds for a, b in itertools.pairwise(bursts)]
    return max(0.0, bursts[0].seconds - statistics.median(gaps)) if gaps else None
