"""Kinds of text, every fixed choice, and a drafter that is always wrong: wall clock, the same answers for all.

    python -m benchmarks.categories TARGET.gguf DRAFT.gguf [--tokens 800] [--k 1 --k 3 --k 5 --k 7] [--temperature 0.8]

The answers are those of the simulator's traces. They are replayed: the target's pass is computed in full and paid for,
and its choice is overruled by the answer, for so small a model copies badly. Each configuration has a session of its
own, and they take turns by the round: a slow spell of the machine falls on all alike. Each begins every kind of text
knowing nothing; with --carry it goes on with what the kind before taught. "plain, again" is plain decoding once more,
and shows how far figures can be trusted. At --temperature 0.8 the answers were drawn by the noise that target and draft
share, and are again: a drafted token is accepted if it is the one drawn.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import click

from edgespec.bench.replay import ReplaySession
from edgespec.drafters.lookup import Lookup
from edgespec.engine import Request, Text
from edgespec.sampling import Sampling

from .bench import Bench, bench, race
from .report import table
from .simulator.trace import Trace

_KINDS = ("chat", "copy", "hard", "mix")
_HICCUP = 1.5  # times the median of as wide a round


class Timed(NamedTuple):
    """A round: the tokens verified and committed, and all it took."""

    width: int
    tokens: int
    seconds: float


class Times:
    """What rounds took, by configuration and kind of text."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names
        self._rounds: defaultdict[tuple[str, str], list[Timed]] = defaultdict(list)

    def add(self, name: str, kind: str, timed: Timed) -> None:
        """Count a round."""
        self._rounds[name, kind].append(timed)

    def report(self) -> str:
        """Speedups over plain decoding, and tokens per pass, by kind and in total."""
        kinds = list(dict.fromkeys(kind for _, kind in self._rounds))
        groups = {**{kind: [kind] for kind in kinds}, "total": kinds}
        plain = {group: self._of("plain", members) for group, members in groups.items()}
        rows = []
        for name in self._names:
            ours = {group: self._of(name, members) for group, members in groups.items()}
            rows.append([name, *(_cell(plain[group], ours[group]) for group in groups)])
        sizes = ", ".join(f"{kind} {sum(timed.tokens for timed in plain[kind])}" for kind in kinds)
        return f"{table(['x plain / hiccups left in (tokens per pass)', *groups], rows)}\ntokens: {sizes}"

    def ratios(self, kind: str, base: str = "plain") -> dict[str, float]:
        """By configuration, how many times as fast as `base`, without hiccups."""
        rounds = self._of(base, [kind])
        return {name: round(_ratios(rounds, self._of(name, [kind]))[0], 4) for name in self._names}

    def best_by_kind(self, names: Sequence[str]) -> dict[str, str]:
        """By kind of text, the fastest of `names`."""
        kinds = dict.fromkeys(kind for _, kind in self._rounds)
        return {kind: max(names, key=self.ratios(kind, names[0]).__getitem__) for kind in kinds}

    def chosen(self, choice: Mapping[str, str], base: str = "plain") -> float:
        """How many times as fast as `base` it is to decode each kind of text as `choice` says, without hiccups."""
        seconds = {kind: _calm(self._of(base, [kind])) for kind in choice}
        took = sum(seconds[kind] / self.ratios(kind, base)[name] for kind, name in choice.items())
        return sum(seconds.values()) / took

    def _of(self, name: str, kinds: Sequence[str]) -> list[Timed]:
        return [timed for kind in kinds for timed in self._rounds[name, kind]]


def _calm(rounds: Sequence[Timed]) -> float:
    """The seconds of rounds, without hiccups."""
    most = _HICCUP * statistics.median(timed.seconds for timed in rounds)
    return sum(min(timed.seconds, most) for timed in rounds)


def _ratios(plain: Sequence[Timed], ours: Sequence[Timed]) -> tuple[float, float]:
    """The seconds of plain decoding over ours: without hiccups, and with them."""
    seconds = defaultdict(list)
    for timed in (*plain, *ours):
        seconds[timed.width].append(timed.seconds)
    most = {width: _HICCUP * statistics.median(each) for width, each in seconds.items()}
    calm = [sum(min(timed.seconds, most[timed.width]) for timed in rounds) for rounds in (plain, ours)]
    raw = [sum(timed.seconds for timed in rounds) for rounds in (plain, ours)]
    return calm[0] / calm[1], raw[0] / raw[1]


def _cell(plain: Sequence[Timed], ours: Sequence[Timed]) -> str:
    calm, raw = _ratios(plain, ours)
    return f"{calm:.3f} / {raw:.3f} ({sum(timed.tokens for timed in ours) / len(ours):.2f})"


@click.command()
@bench
@click.option("--tokens", default=800, show_default=True, help="Tokens of each kind of text")
@click.option("--kind", "kinds", multiple=True, default=_KINDS, help="Kinds of text [default: all]")
@click.option("--k", "fixed", multiple=True, type=int, help="Fixed draft lengths to compare with")
@click.option("--temperature", type=click.Choice(["0", "0.8"]), default="0", show_default=True)
@click.option("--carry", is_flag=True, help="Go on from kind to kind with what was learned")
def main(
    bench: Bench, tokens: int, kinds: tuple[str, ...], fixed: tuple[int, ...], temperature: str, carry: bool
) -> None:
    """Measure TARGET with DRAFT."""
    click.echo(bench.describe())
    configure(bench, fixed)
    sessions = {name: ReplaySession(bench.another()) for name in bench.configurations}
    times = Times(list(sessions))
    sampling, suffix = Sampling(temperature=float(temperature), seed=1), "" if temperature == "0" else f"-{temperature}"
    for i, kind in enumerate(kinds):
        if i and not carry:
            configure(bench, fixed)
        engines = {name: bench.engine(name, session=session) for name, session in sessions.items()}
        said = 0
        for item in Trace.load(kind + suffix).items:
            for session in sessions.values():
                session.text = (*item.prompt, *item.answer)
            for name, event, seconds in race(engines, Request(item.prompt, sampling, len(item.answer))):
                if isinstance(event, Text):
                    times.add(name, kind, Timed(event.round.width, len(event.tokens), seconds))
            said += len(item.answer)
            if said >= tokens:
                break
        click.echo(times.report())


def configure(bench: Bench, fixed: Sequence[int]) -> None:
    """All configurations, which know nothing."""
    bench.add_usual()
    bench.add("plain, again", [], 0)  # shows how far figures can be trusted
    for k in fixed:
        bench.add(f"model K={k}", [bench.model()], k)
        bench.add(f"look-up K={k}", [Lookup()], k)


if __name__ == "__main__":
    main()
