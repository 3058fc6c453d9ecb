"""Kinds of text, every fixed choice, and a drafter that is always wrong: wall clock, the same answers for all.

    python -m benchmarks.categories TARGET.gguf DRAFT.gguf [--tokens 800] [--k 1 --k 3 --k 5 --k 7]

The answers are those of the simulator's traces. They are replayed: the target's pass is computed in full and paid for,
and its choice is overruled by the answer, for so small a model copies badly. Configurations take turns on every answer;
each learns from nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from operator import attrgetter

import click

from edgespec.backends import Session
from edgespec.drafters.lookup import Lookup
from edgespec.engine import Request
from edgespec.stats import Stats
from edgespec.types import Floats

from .bench import Bench, answer, bench
from .report import table
from .simulator.trace import Trace

_KINDS = ("chat", "copy", "hard", "mix")


class Replayed:
    """A session whose logits say `text`, at the cost of its own."""

    def __init__(self, session: Session) -> None:
        self.vocab = session.vocab
        self.context = session.context
        self.can_rollback = session.can_rollback
        self.can_tree = session.can_tree
        self.leaves = session.leaves
        self.widest = session.widest
        self.identity = session.identity
        self.text: Sequence[int] = ()
        self._session = session

    @property
    def tokens(self) -> Sequence[int]:
        return self._session.tokens

    def prefill(self, tokens: Sequence[int]) -> None:
        self._session.prefill(tokens)

    def decode(self, tokens: Sequence[int], tree: Sequence[int] | None = None) -> Floats:
        held = len(self._session.tokens)
        rows = self._session.decode(tokens, tree)
        depths: list[int] = []
        for parent in tree if tree is not None else range(-1, len(tokens) - 1):
            depths.append(depths[parent] + 1 if parent >= 0 else 0)
        for row, depth in zip(rows, depths, strict=True):
            if held + depth + 1 < len(self.text):
                row[self.text[held + depth + 1]] = 1e4
        return rows

    def rollback(self, length: int, keep: Sequence[int] = ()) -> None:
        self._session.rollback(length, keep)

    def close(self) -> None:
        self._session.close()


class Times:
    """What answers took, by configuration and kind of text."""

    def __init__(self) -> None:
        self._stats: defaultdict[tuple[str, str], list[Stats]] = defaultdict(list)

    def add(self, name: str, kind: str, stats: Stats) -> None:
        """Count an answer."""
        self._stats[name, kind].append(stats)

    def report(self) -> str:
        """Speedups over plain decoding, and tokens per pass, by kind and in total."""
        names, kinds = (list(dict.fromkeys(each)) for each in zip(*self._stats, strict=True))
        groups = {**{kind: [kind] for kind in kinds}, "total": kinds}
        rows = [[name, *(self._cell(name, group) for group in groups.values())] for name in names]
        sizes = ", ".join(f"{kind} {self._sum(_tokens, 'plain', [kind])}" for kind in kinds)
        return f"{table(['x plain (tokens per pass)', *groups], rows)}\ntokens: {sizes}"

    def _cell(self, name: str, kinds: Sequence[str]) -> str:
        speedup = self._sum(_seconds, "plain", kinds) / self._sum(_seconds, name, kinds)
        return f"{speedup:.3f} ({self._sum(_tokens, name, kinds) / self._sum(_passes, name, kinds):.2f})"

    def _sum(self, figure: Callable[[Stats], float], name: str, kinds: Sequence[str]) -> float:
        return sum(figure(stats) for kind in kinds for stats in self._stats[name, kind])


_seconds, _tokens, _passes = (attrgetter(name) for name in ("seconds", "tokens", "rounds"))


@click.command()
@bench
@click.option("--tokens", default=800, show_default=True, help="Tokens of each kind of text")
@click.option("--kind", "kinds", multiple=True, default=_KINDS, help="Kinds of text [default: all]")
@click.option("--k", "fixed", multiple=True, type=int, default=(1, 3, 5, 7), help="Fixed draft lengths")
def main(bench: Bench, tokens: int, kinds: tuple[str, ...], fixed: tuple[int, ...]) -> None:
    """Measure TARGET with DRAFT."""
    click.echo(bench.describe())
    bench.session = session = Replayed(bench.session)
    bench.add_usual()
    for k in fixed:
        bench.add(f"model K={k}", [bench.model()], k)
        bench.add(f"look-up K={k}", [Lookup()], k)
    times, turn = Times(), 0
    for kind in kinds:
        said = 0
        for item in Trace.load(kind).items:
            session.text = (*item.prompt, *item.answer)
            request = Request(item.prompt, max_tokens=len(item.answer))
            for name in bench.order(turn):
                times.add(name, kind, answer(bench.engine(name), request)[1])
            turn += 1
            said += len(item.answer)
            if said >= tokens:
                break
        click.echo(times.report())


if __name__ == "__main__":
    main()
