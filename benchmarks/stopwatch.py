"""The figures that `chat --stats` shows, beside an outside stopwatch.

    python -m benchmarks.stopwatch TARGET.gguf DRAFT.gguf DIALOGUES.jsonl [--dialogues 6] [--tokens 200] [--busy 2]

Plain decoding, adaptive speculation and adaptive speculation with a drafter that is always wrong take turns by the
round, each in a session of its own, so a slow spell of the machine falls on all alike. The stopwatch runs around the
call that yields a round. `stated` is what `Stats` says of the answers, `outside` what the stopwatch says: tokens a
second, and the time of plain decoding over one's own. `plain, again` shows how far the stopwatch can be trusted,
`rough` how many answers said of themselves that their speedup is.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import click

from edgespec.engine import Finished, Request, Text
from edgespec.stats import Stats
from edgespec.terminal.show import ROUGH

from .bench import Bench, bench, race
from .dialogues import Dialogues, dialogues
from .report import table

_OUTSIDE = ("outside", "stated / outside")
_COLUMNS = ("", "tokens/s stated", *_OUTSIDE, "x plain stated", *_OUTSIDE, "rough")


@dataclass
class Clocked:
    """What one configuration took, by the stopwatch and by its own figures."""

    outside: float = 0.0
    stated: float = 0.0
    plain: float = 0.0  # seconds that plain decoding would have taken, as stated
    tokens: int = 0
    answers: int = 0
    rough: int = 0  # of these, by their own figures

    def add(self, stats: Stats) -> None:
        """Count the figures of one answer."""
        self.stated += stats.seconds
        self.tokens += stats.tokens
        self.answers += 1
        self.rough += stats.plain_error > ROUGH
        if stats.plain_tokens_per_second:
            self.plain += stats.tokens / stats.plain_tokens_per_second


def _spin() -> None:
    while True:
        pass


@contextmanager
def busy(programs: int) -> Iterator[None]:
    """Other programs that never rest."""
    with ExitStack() as stack:
        for _ in range(programs):
            process = multiprocessing.get_context("spawn").Process(target=_spin, daemon=True)
            process.start()
            stack.callback(process.terminate)
        yield


def row(name: str, own: Clocked, plain: Clocked) -> list[str]:
    """One row of the table."""
    stated, outside = own.tokens / own.stated, own.tokens / own.outside
    faster, truly = own.plain / own.stated, plain.outside / own.outside * own.tokens / plain.tokens
    return [
        name,
        *(f"{stated:.1f}", f"{outside:.1f}", f"{stated / outside:.3f}"),
        *(f"{faster:.3f}", f"{truly:.3f}", f"{faster / truly:.3f}"),
        f"{own.rough} of {own.answers}",
    ]


@click.command()
@bench
@dialogues(6)
@click.option("--tokens", default=200, show_default=True, help="Tokens of each answer")
@click.option("--busy", "programs", default=0, show_default=True, help="Programs that keep a core busy each")
def main(bench: Bench, dialogues: Dialogues, tokens: int, programs: int) -> None:
    """Compare the stated figures of TARGET with DRAFT with a stopwatch."""
    click.echo(bench.describe())
    bench.add_usual()
    bench.add("plain, again", [], 0)
    sessions = {name: bench.another() for name in bench.configurations}
    clocked = {name: Clocked() for name in sessions}
    with busy(programs):
        for prompt in dialogues.openings(bench.vocabulary, 1024 - tokens):
            engines = {name: bench.engine(name, endless=True, session=session) for name, session in sessions.items()}
            for name, event, seconds in race(engines, Request(prompt, max_tokens=tokens)):
                if isinstance(event, Text):
                    clocked[name].outside += seconds
                elif isinstance(event, Finished):
                    clocked[name].add(event.stats)
    click.echo(table(_COLUMNS, [row(name, own, clocked["plain"]) for name, own in clocked.items()]))


if __name__ == "__main__":
    main()
