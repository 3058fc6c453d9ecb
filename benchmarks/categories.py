"""Kinds of text, every fixed choice, and a drafter that is always wrong: wall clock, the same answers for all.

    python -m benchmarks.categories TARGET.gguf DRAFT.gguf [--tokens 800] [--k 1 --k 3 --k 5 --k 7]

The answers are those of the simulator's traces. They are replayed: the target's pass is computed in full and paid for,
and its choice is overruled by the answer, for so small a model copies badly. Configurations take turns on every answer,
in an order that rotates, so that a slow spell of the machine falls on all alike; each learns from nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from edgespec.backends import Session
from edgespec.drafters.lookup import Lookup
from edgespec.engine import Engine, Finished, Request
from edgespec.types import Floats
from edgespec.verify import verifier

from .simulator.trace import Item, Trace
from .speed import Bench, Endless

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
    """Seconds and passes by configuration and kind of text."""

    def __init__(self) -> None:
        self._seconds: dict[tuple[str, str], float] = {}
        self._passes: dict[tuple[str, str], int] = {}
        self._tokens: dict[str, int] = {}

    def add(self, name: str, kind: str, finished: Finished) -> None:
        """Count an answer."""
        key = name, kind
        self._seconds[key] = self._seconds.get(key, 0.0) + finished.stats.seconds
        self._passes[key] = self._passes.get(key, 0) + finished.stats.rounds
        if name == "plain":
            self._tokens[kind] = self._tokens.get(kind, 0) + finished.stats.tokens

    def report(self) -> str:
        """Speedups over plain decoding, and tokens per pass, by kind and in total."""
        kinds = list(self._tokens)
        head = " ".join(f"{kind:>14}" for kind in [*kinds, "total"])
        lines = [f"{'':16} {head}   x plain (tokens per pass)"]
        for name in dict.fromkeys(name for name, _ in self._seconds):
            cells = [self._cell(name, [kind]) for kind in kinds]
            lines.append(f"{name:16} {' '.join(cells)} {self._cell(name, kinds)}")
        sizes = ", ".join(f"{kind} {n}" for kind, n in self._tokens.items())
        return "\n".join([*lines, f"tokens: {sizes}"])

    def _cell(self, name: str, kinds: Sequence[str]) -> str:
        plain, ours = (sum(self._seconds[who, kind] for kind in kinds) for who in ("plain", name))
        tokens = sum(self._tokens[kind] for kind in kinds)
        return f"{plain / ours:7.3f} ({tokens / sum(self._passes[name, kind] for kind in kinds):4.2f})"


def answer(bench: Bench, session: Replayed, name: str, item: Item) -> Finished:
    """One answer by one configuration."""
    session.text = (*item.prompt, *item.answer)
    controller, prices = bench.configurations[name]
    rule, pieces = verifier("match"), Endless(bench.target.vocabulary)
    engine = Engine(session, pieces, controller, rule, bench.interrupt, prices)
    *_, last = engine.generate(Request(list(item.prompt), max_tokens=len(item.answer)))
    if not isinstance(last, Finished):
        raise click.ClickException("an answer ended before its end")
    return last


@click.command()
@click.argument("target", type=click.Path(path_type=Path, exists=True))
@click.argument("draft", type=click.Path(path_type=Path, exists=True))
@click.option("--tokens", default=800, show_default=True, help="Tokens of each kind of text")
@click.option("--kind", "kinds", multiple=True, default=_KINDS, help="Kinds of text [default: all]")
@click.option("--k", "fixed", multiple=True, type=int, default=(1, 3, 5, 7), help="Fixed draft lengths")
@click.option("--threads", default=2, show_default=True)
def main(target: Path, draft: Path, tokens: int, kinds: tuple[str, ...], fixed: tuple[int, ...], threads: int) -> None:
    """Measure TARGET with DRAFT."""
    bench = Bench(target, draft, threads)
    click.echo(bench.describe())
    bench.add("plain", [], 0)
    bench.add("adaptive", [Lookup(), bench.model()], None)
    bench.add("always wrong", [bench.wrong()], None)
    for k in fixed:
        bench.add(f"model K={k}", [bench.model()], k)
        bench.add(f"look-up K={k}", [Lookup()], k)
    session, times = Replayed(bench.session), Times()
    names = list(bench.configurations)
    turn = 0
    for kind in kinds:
        said = 0
        for item in Trace.load(kind).items:
            for name in names[turn % len(names) :] + names[: turn % len(names)]:
                times.add(name, kind, answer(bench, session, name, item))
            turn += 1
            said += len(item.answer)
            if said >= tokens:
                break
        click.echo(times.report())


if __name__ == "__main__":
    main()
