"""Another program starts on one core in the middle of an answer: how soon the controller follows, and what it costs.

    python -m benchmarks.company TARGET.gguf DRAFT.gguf DIALOGUES.jsonl [--dialogues 4] [--tokens 300]

Plain decoding and ours take turns on the same answers. After a third of the tokens a process begins to keep one core
busy, and stays to the end. Compared is what follows it, per token, under the same load.
"""

from __future__ import annotations

import math
import multiprocessing
import os
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import click

from edgespec.engine import Request, Text

from .bench import Bench, bench
from .dialogues import Dialogues, dialogues
from .report import table

_NEAR = 0.4  # log; a price is right if the median of the next rounds is as near as this
_WINDOW = 7


def _busy(core: int) -> None:
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {core})
    while True:
        pass


@contextmanager
def company() -> Iterator[None]:
    """A process that keeps the first of our cores busy."""
    core = min(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 0
    process = multiprocessing.get_context("spawn").Process(target=_busy, args=(core,), daemon=True)
    process.start()
    time.sleep(0.5)  # until it runs
    try:
        yield
    finally:
        process.terminate()
        process.join()


@dataclass
class Seen:
    """What one configuration did under load."""

    tokens: int = 0
    seconds: float = 0.0
    #: Rounds until prices were right again, by answer; None where they never were.
    followed: list[int | None] = field(default_factory=list)
    widths: list[int] = field(default_factory=list)


def answer(bench: Bench, name: str, prompt: list[int], tokens: int, seen: Seen) -> None:
    """One answer, with company from its first third on."""
    prices = bench.configurations[name][1]
    events = bench.engine(name).generate(Request(prompt, max_tokens=tokens))
    said = 0
    for event in events:
        if isinstance(event, Text):
            said += len(event.tokens)
        if said >= tokens // 3:
            break
    surprises: list[float] = []
    with company():
        while True:
            before = list(prices.curve())
            started = time.perf_counter()
            event = next(events)
            if not isinstance(event, Text):
                break
            seen.seconds += time.perf_counter() - started
            seen.tokens += len(event.tokens)
            seen.widths.append(event.round.width)
            surprises.append(math.log(event.round.verify_seconds / before[event.round.width - 1]))
    near = (i for i in range(len(surprises) - _WINDOW) if _right(surprises[i : i + _WINDOW]))
    seen.followed.append(next(near, None))


def _right(surprises: list[float]) -> bool:
    return abs(statistics.median(surprises)) < _NEAR


@click.command()
@bench
@dialogues(4)
@click.option("--tokens", default=300, show_default=True, help="Tokens of each answer")
def main(bench: Bench, dialogues: Dialogues, tokens: int) -> None:
    """Measure TARGET with DRAFT on DIALOGUES."""
    click.echo(bench.describe())
    bench.add_usual()
    seen = {name: Seen() for name in bench.configurations}
    for i, prompt in enumerate(dialogues.openings(bench.vocabulary, 1024)):
        for name in bench.order(i):
            answer(bench, name, prompt, tokens, seen[name])
            click.echo(f"answer {i + 1}, {name}: right again after {seen[name].followed[-1]} rounds")
    plain = seen["plain"].seconds / seen["plain"].tokens
    rows = []
    for name, each in seen.items():
        per_token = each.seconds / each.tokens
        rows.append([name, f"{1e3 * per_token:.2f}", f"{plain / per_token:.2f}", f"{statistics.mean(each.widths):.1f}"])
    click.echo(table(("under load", "ms a token", "x plain", "mean width"), rows))


if __name__ == "__main__":
    main()
