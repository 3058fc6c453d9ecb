"""Very many answers under options drawn at random, each compared with plain decoding: equal, or parted at a near tie.

    python -m benchmarks.soak --answers 6556 --seed 1 [--from 3000] [--target MODEL --draft MODEL]

Without models the demo pair answers. Each answer has its own prompt, sampling, stop strings, length, drafters, draft
length and verifier, drawn from the seed and the answer's number; one in three is cancelled somewhere and asked again,
on the same session, whose cache must have stayed intact. The pair is loaded three times: at the prices of the machine,
at prices at which trees pay, and with exact passes. Plain decoding runs on models of its own, so that a cache that
speculation spoilt cannot spoil both.

`match` draws the noise of plain decoding, so its text is compared at any temperature; `rejection` and `block` keep the
text at temperature 0 only. Exit status 0: no answer was different, and memory did not grow.
"""

from __future__ import annotations

import random
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple
from unittest import mock

import click
import psutil

from edgespec import Device, Runtime, Sampling, Speculation, Text, load, models
from edgespec.engine import Event, Finished
from edgespec.prices import Prices
from edgespec.terminal.check_report import parsed
from edgespec.tools import check
from edgespec.verify import VERIFIERS

from .dialogues import FILE

CONTEXT = 512
_LONGEST_PROMPT = 200
_EXACT = 4  # tokens as if for which exact passes are computed
_WARM = 100  # answers after which memory must not grow
_GROWTH = 200e6  # bytes
_TEXTS = (
    "one two three one two three one two",
    "A hotel in Portland, a hotel in Salem, a hotel in Portland, a hotel in",
    "def add(a, b):\n    return a + b\n\ndef sub(a, b):\n    return",
    "\n\n\n",
)
_STOPS = ("\n", ".", "?", " the", "e ", "you", "ing to", "\ufffd")


OnEvent = Callable[[int, Event], None]  # told of each event and its number


class Flat(Prices):
    """Prices at which wide passes cost nothing, whatever they take: trees are bought."""

    def observe(self, *_measured: object) -> None:
        """Nothing is learned."""


@dataclass(frozen=True, slots=True)
class Case:
    """One answer. `cancel` ends a first attempt: after so many events, or, below 1, so many seconds; None has none."""

    kind: str
    prompt: Sequence[int]
    sampling: Sampling
    max_tokens: int
    stop: tuple[str, ...]
    speculation: Speculation
    cancel: float | None


class Said(NamedTuple):
    """What was answered, and why it ended."""

    tokens: tuple[int, ...]
    text: str
    reason: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a case: equal, near tie or DIFFERENT; `why` says where."""

    case: Case
    verdict: str
    why: str = ""


class Soak:
    """The pair, loaded for each kind with speculation and without. Close it."""

    def __init__(self, target: Path, draft: Path | None, threads: int = 1) -> None:
        #: What was compared, lest nothing was: tokens, drafted and accepted ones, trees, answers that were cancelled.
        self.seen: Counter[str] = Counter()
        self._runtimes: dict[str, tuple[Runtime, Runtime]] = {}
        usual, exact = (Device(context=CONTEXT, threads=threads, exact=n) for n in (0, _EXACT))
        with ExitStack() as opened:
            for kind, device in (("usual", usual), ("trees", usual), ("exact", exact)):
                plain = opened.enter_context(load(target, device=device, speculation=Speculation((), 0)))
                with _flat() if kind == "trees" else ExitStack():
                    runtime = opened.enter_context(load(target, draft, device=device))
                self._runtimes[kind] = (plain, runtime)
            self._prompts = list(_prompts(self._runtimes["usual"][0]))
            self.close = opened.pop_all().close

    def run(self, seed: int, numbers: Sequence[int]) -> Iterator[Outcome]:
        """The outcomes of these numbers of a seed."""
        for number in numbers:
            yield self.compared(self.case(random.Random(f"{seed}/{number}")))  # noqa: S311 - no secret

    def case(self, drawn: random.Random) -> Case:
        """A case at random."""
        kind = drawn.choice(("usual", "usual", "trees", "trees", "exact"))
        runtime = self._runtimes[kind][1]
        sampling = _sampling(drawn, runtime.vocabulary.size)
        return Case(
            kind,
            self._prompt(drawn, runtime.vocabulary.size),
            sampling,
            drawn.choice((1, 2, drawn.randint(3, 24), drawn.randint(24, 64))),
            tuple(drawn.sample(_STOPS, drawn.choice((0, 0, 0, 1, 3)))),
            _speculation(drawn, runtime, sampling),
            drawn.choice((None, None, None, None, drawn.randint(1, 12), drawn.uniform(0, 0.04))),
        )

    def compared(self, case: Case) -> Outcome:
        """Answer it plainly, in vain where it is cancelled, and speculatively."""
        plain, runtime = self._runtimes[case.kind]
        expected = _said(plain, case, Speculation((), 0), lambda *_event: None)
        if case.cancel is not None:
            half = _cancelled(runtime, case)
            self.seen["cancelled"] += half.reason == "cancelled"
            if half.tokens != expected.tokens[: len(half.tokens)]:
                return self._parted(case, expected, half._replace(reason="cancelled"))
        found = _said(runtime, case, case.speculation, self._see)
        return Outcome(case, "equal") if found == expected else self._parted(case, expected, found)

    def _parted(self, case: Case, expected: Said, found: Said) -> Outcome:
        """Whether the engine's own rounding explains it, as `edgespec check` judges that."""
        if all(a == b for a, b in zip(expected.tokens, found.tokens, strict=False)):
            return Outcome(case, "DIFFERENT", f"{found} in place of {expected}")
        plain, _ = self._runtimes[case.kind]
        parted = check._diverge(plain, case.prompt, expected.tokens, found.tokens, case.sampling)
        return Outcome(case, "near tie" if parted.near_tie else "DIFFERENT", str(parted))

    def _see(self, _number: int, event: Event) -> None:
        if isinstance(event, Text):
            draft = event.round.draft
            seen = {"tokens": len(event.tokens), "drafted": len(draft), "accepted": len(event.round.path)}
            self.seen.update({**seen, "trees": int(not draft.is_chain)})

    def _prompt(self, drawn: random.Random, vocabulary: int) -> Sequence[int]:
        if drawn.random() < 0.15:
            return [drawn.randrange(vocabulary) for _ in range(drawn.randint(1, 60))]
        prompt = drawn.choice(self._prompts)
        return prompt if drawn.random() < 0.6 else prompt[: drawn.randint(1, len(prompt))]


def _flat() -> mock._patch[Callable[..., Prices]]:
    def flat(session: object, _text: object, what: str, *_rest: object) -> Prices:
        return Flat([{"target": 2e-3, "draft": 1e-4}[what]] * min(16, session.widest))  # type: ignore[attr-defined]

    return mock.patch("edgespec.runtime.opening._priced", flat)


def _prompts(runtime: Runtime) -> Iterator[list[int]]:
    for text in _TEXTS:
        yield runtime.vocabulary.tokenize(text, start=True)
    for _, asked in parsed(None):
        if "prompt" in asked or runtime.vocabulary.template is None:
            text = asked.get("prompt") or asked["messages"][-1]["content"]
            yield runtime.vocabulary.tokenize(text, start=True)[:_LONGEST_PROMPT]
        else:
            yield runtime.prompt(asked["messages"])[-_LONGEST_PROMPT:]


def _sampling(drawn: random.Random, vocabulary: int) -> Sampling:
    values: dict[str, float] = {}
    if drawn.random() < 0.5:
        values["temperature"] = drawn.choice((0.2, 0.7, 1.0, 1.5))
        values["top_k"] = drawn.choice((0, 0, 1, 5, 40))
        values["top_p"] = drawn.choice((1.0, 1.0, 0.5, 0.95))
        values["min_p"] = drawn.choice((0.0, 0.0, 0.05, 0.3))
    if drawn.random() < 0.4:
        values["repetition_penalty"] = drawn.choice((1.0, 0.9, 1.1, 1.5))
        values["presence_penalty"] = drawn.choice((0.0, 0.5, -0.5, 2.0))
        values["frequency_penalty"] = drawn.choice((0.0, 0.2, -0.2, 1.0))
        values["penalty_window"] = drawn.choice((0, 1, 8, 64))
    biased = drawn.sample(range(vocabulary), drawn.choice((0, 0, 0, 3, 40)))
    bias = tuple((token, drawn.choice((float("-inf"), -5.0, 0.5, 3.0))) for token in biased)
    return Sampling(**values, logit_bias=bias, seed=drawn.getrandbits(32))  # type: ignore[arg-type]


def _speculation(drawn: random.Random, runtime: Runtime, sampling: Sampling) -> Speculation:
    names = runtime.drafters
    drafters = tuple(drawn.sample(names, drawn.randint(1, len(names)))) if drawn.random() < 0.5 else None
    k = min(drawn.randint(1, 8), runtime.session.widest - 1) if drawn.random() < 0.5 else None
    return Speculation(drafters, k, drawn.choice(tuple(VERIFIERS)) if sampling.greedy else "match")


def _said(runtime: Runtime, case: Case, speculation: Speculation, on_event: OnEvent) -> Said:
    tokens: list[int] = []
    text: list[str] = []
    stream = runtime.complete(
        case.prompt, case.sampling, max_tokens=case.max_tokens, stop=case.stop, speculation=speculation
    )
    for number, event in enumerate(stream):
        on_event(number, event)
        if isinstance(event, Text):
            tokens += event.tokens
            text.append(event.text)
        elif isinstance(event, Finished):
            return Said(tuple(tokens), "".join(text), event.reason)
    raise click.ClickException("an answer ended before its end")


def _cancelled(runtime: Runtime, case: Case) -> Said:
    """A first attempt, ended by a cancel between events or, from another thread, at any moment."""
    wanted = case.cancel or 0.0

    def between(number: int, _event: Event) -> None:
        if number == wanted:
            runtime.cancel()

    timer = threading.Timer(wanted, runtime.cancel)
    if wanted < 1:
        timer.start()
    try:
        return _said(runtime, case, case.speculation, between)
    finally:
        timer.cancel()
        if wanted < 1:
            timer.join()


def report(counts: Mapping[str, int]) -> str:
    """The counts in a line."""
    return ", ".join(f"{counts.get(verdict, 0)} {verdict}" for verdict in ("equal", "near tie", "DIFFERENT"))


@click.command()
@click.option("--answers", default=6556, show_default=True)
@click.option("--seed", default=1, show_default=True)
@click.option("--from", "first", default=0, show_default=True, help="The number of the first answer")
@click.option("--target", type=FILE, help="Instead of the demo pair's")
@click.option("--draft", type=FILE)
@click.option("--threads", default=1, show_default=True)
def main(answers: int, seed: int, first: int, target: Path | None, draft: Path | None, threads: int) -> None:
    """Compare so many answers with plain decoding."""
    demo = models.demo()
    soak = Soak(target or demo.target, draft if target else demo.draft, threads)
    counts: Counter[str] = Counter()
    warm = most = psutil.Process().memory_info().rss
    for number, outcome in enumerate(soak.run(seed, range(first, first + answers)), first):
        counts[outcome.verdict] += 1
        most = max(most, psutil.Process().memory_info().rss)
        warm = most if number - first < _WARM else warm
        if outcome.verdict != "equal":
            click.echo(f"answer {number}, {outcome.verdict}: {outcome.why}; {outcome.case}")
        if outcome.verdict == "DIFFERENT":
            click.echo(f"    python -m benchmarks.soak --seed {seed} --from {number} --answers 1")
        if (number - first + 1) % 500 == 0:
            click.echo(f"{number + 1}: {report(counts)}; {most / 1e6:.0f} MB", err=True)
    soak.close()
    click.echo(f"seed {seed}, answers {first} to {first + answers - 1}: {report(counts)}")
    click.echo(
        ", ".join(f"{soak.seen[name]} {name}" for name in ("tokens", "drafted", "accepted", "trees", "cancelled"))
    )
    click.echo(f"memory: {most / 1e6:.0f} MB at most, {(most - warm) / 1e6:.0f} MB more than after {_WARM} answers")
    sys.exit(1 if counts["DIFFERENT"] or most - warm > _GROWTH else 0)


if __name__ == "__main__":
    main()
