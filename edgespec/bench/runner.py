"""The run of a benchmark: the order of answers, and the handling of failures.

Contenders alternate answer by answer, so that a slow phase of the machine affects all of them equally; and each follows
each other one equally often (E. J. Williams 1949, "Experimental designs balanced for the estimation of residual effects
of treatments"), so that carry-over effects, such as warm caches and heat, are balanced as well. All get the same
prompts: the history of a later turn is plain decoding's answers.
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
from .contender import AnswerRequest, Contender, ContenderFailed, Done
from .meter import Meter
from .records import PLAIN, AnswerRecord, Burst, Problem
from .suites import Question, Suite

_WARM_UP = 16  # tokens


@dataclass(frozen=True, slots=True)
class RequestSettings:
    """The settings of requests that all contenders share.

    Args:
        prompt: converts messages to tokens.
        tokens: converts a text to tokens, without special tokens.
        text: converts tokens to a text.
        context: tokens of prompt and answer together, at most.
    """

    sampling: Sampling
    max_tokens: int
    context: int
    prompt: Callable[[Sequence[Message]], list[int]]
    tokens: Callable[[str], list[int]]
    text: Callable[[Sequence[int]], str]


@dataclass
class Runner:
    """Runs a benchmark. `known` are the answers of an earlier part of the run."""

    suite: Suite
    contenders: Sequence[Contender]
    terms: RequestSettings
    known: Sequence[AnswerRecord] = ()
    meter: Meter = field(default_factory=Meter)
    clock: Callable[[], float] = time.perf_counter

    def __post_init__(self) -> None:
        self._known = {(answer.question, answer.turn, answer.contender): answer for answer in self.known}
        self._failed: set[str] = set()
        self._turn = 0

    @property
    def total(self) -> int:
        """The number of answers of the whole run."""
        return sum(
            len(question.turns)
            for question in self.suite.questions
            for contender in self.contenders
            if self._takes(contender, question)
        )

    def run(self) -> Iterator[AnswerRecord | Problem]:
        """Yield answers and problems. A contender that fails is left out of the rest of the run.

        Raises:
            Interrupted: an answer was cancelled.
        """
        yield from self._warm_up()
        for question in self.suite.questions:
            yield from self._question(question)

    def _warm_up(self) -> Iterator[Problem]:
        """Let each contender answer once before the measurement: an engine initializes caches in its first answer."""
        question = self.suite.questions[0]
        try:
            ask = self._ask(question, 0, [{"role": "user", "content": question.turns[0]}])
        except EdgespecError:  # reported when the question is asked
            return
        for contender in self.contenders:
            try:
                for _ in contender.answer(AnswerRequest(ask.prompt, ask.sampling, min(_WARM_UP, ask.max_tokens))):
                    pass
            except Interrupted:
                raise
            except EdgespecError as error:
                yield from self._told(contender, question, error)

    def _question(self, question: Question) -> Iterator[AnswerRecord | Problem]:
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

    def _ask(self, question: Question, turn: int, messages: Sequence[Message]) -> AnswerRequest:
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
        return AnswerRequest(prompt, terms.sampling, most, replay)

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

    def _answer(self, contender: Contender, ask: AnswerRequest, question: Question, turn: int) -> AnswerRecord:
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
        return AnswerRecord(
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
    """The order of `n` contenders in a turn, numbered from 0: a row of a Williams square, each row once per cycle.

    In a cycle of n turns, 2n for odd n, each contender has each place equally often, and directly follows each other
    one equally often. The rows of a cycle are shuffled, since the first of a turn follows the last of the previous one.
    """
    rows = [[(place + row) % n for place in _zigzag(n)] for row in range(n)]
    rows += [row[::-1] for row in rows] if n % 2 else []
    if not rows:
        return []
    cycle, at = divmod(turn, len(rows))
    random.Random(cycle).shuffle(rows)  # noqa: S311 - no secret
    return rows[at]


def _zigzag(n: int) -> list[int]:
    """0, n - 1, 1, n - 2, ...: all differences between neighbours are distinct."""
    return [i // 2 if i % 2 == 0 else n - 1 - i // 2 for i in range(n)]


def _digest(tokens: Sequence[int]) -> str:
    return hashlib.sha256(str(tokens).encode()).hexdigest()[:16]


def _lasting(known: Sequence[tuple[Round, float]], before: float) -> Iterator[tuple[Round, float]]:
    """Each round with its duration, from rounds with their end times."""
    for each, ended in known:
        yield each, ended - before
        before = ended


def _prompt_seconds(bursts: Sequence[Burst]) -> float | None:
    """An estimate where the engine reports none: the time to the first token minus the median gap; None where all
    tokens came at once."""
    gaps = [b.seconds - a.seconds for a, b in itertools.pairwise(bursts)]
    return max(0.0, bursts[0].seconds - statistics.median(gaps)) if gaps else None
