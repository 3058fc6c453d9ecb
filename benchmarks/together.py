"""All drafters together over each single one, in several runs of each kind of text.

    python -m benchmarks.together TARGET --draft DRAFT.gguf --draft EAGLE3.gguf --kind list --single lookup --runs 8

In one run of some hundred tokens a few rounds change a ratio by several per cent (`benchmarks/drafters.py` measures
every drafter in one run). Here each run begins at another place of the texts of a kind, without calibration, and
answers --warm-up tokens before those that are measured; all configurations take turns by the round. A ratio is the
geometric mean of all runs, with its standard error. Of a mix there is also the ratio to the fastest of the given
single drafters for each kind of text, chosen afterwards.
"""

from __future__ import annotations

import json
import math
import statistics
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import click

from edgespec import Device

from .categories import Times
from .dialogues import FILE, Dialogues
from .drafters import PLAIN, TOGETHER, Configurations, measured
from .kinds import KINDS, Item, taken, texts

_DIALOGUES = 1000  # of a file, at most
_TEXTS = "texts"  # of one run, of whatever kinds
BEST = "the best single one of each kind"


class Ratio(NamedTuple):
    """The geometric mean of ratios, and its standard error as a share of it; NaN of a single one."""

    mean: float
    error: float

    @classmethod
    def of(cls, ratios: Sequence[float]) -> Ratio:
        logs = [math.log(ratio) for ratio in ratios]
        error = statistics.stdev(logs) / math.sqrt(len(logs)) if len(logs) > 1 else math.nan
        return cls(math.exp(statistics.fmean(logs)), error)

    def __str__(self) -> str:
        return f"{self.mean:.3f} +- {self.error:.3f}"


def parts(pool: Sequence[Item], tokens: int, runs: int) -> Iterator[list[Item]]:
    """For each run the items with `tokens` tokens of answers or a little more, from another place of the pool on, which
    begins again after its end. The turns of a dialogue stay in their order."""
    for run in range(runs):
        at = run * len(pool) // runs
        yield list(taken(iter([*pool[at:], *pool[:at]]), tokens))


def compared(
    configurations: Configurations, singles: Sequence[str], asked: Sequence[Item], before: int
) -> dict[str, float]:
    """How many times as fast as each of `singles` all together are in one run, after its first `before` tokens; of
    texts of several kinds also than `BEST`, if there are several of `singles`."""
    names = (*singles, TOGETHER)
    speakers = configurations.runtimes(names, {})
    times, kinds = Times(names), Times(names)
    for name, kind, timed in measured(speakers, asked, before):
        times.add(name, _TEXTS, timed)
        kinds.add(name, kind, timed)
    for runtime, _ in speakers.values():
        runtime.close()
    ratios = {name: times.ratios(_TEXTS, name)[TOGETHER] for name in singles}
    best = kinds.best_by_kind(singles)
    if len(best) > 1 and len(singles) > 1:
        ratios[BEST] = kinds.chosen(dict.fromkeys(best, TOGETHER), singles[0]) / kinds.chosen(best, singles[0])
    return ratios


@click.command()
@click.argument("target", type=FILE)
@click.option("--draft", "drafts", type=FILE, multiple=True, required=True, help="A draft model or a head; repeatable")
@click.option("--threads", default=2, show_default=True)
@click.option("--backend", default="auto", show_default=True, help="The target's engine")
@click.option("--kind", type=click.Choice(KINDS), required=True, help="The kind of text")
@click.option("--single", "singles", multiple=True, required=True, help="A configuration to compare with; repeatable")
@click.option("--runs", type=click.IntRange(1), default=6, show_default=True)
@click.option("--tokens", default=600, show_default=True, help="Tokens of a run that are measured, about")
@click.option("--warm-up", "before", default=150, show_default=True, help="Tokens of a run before those")
@click.option("--pool", default=2400, show_default=True, help="Tokens of the texts of which a run takes some")
@click.option("--longest", default=160, show_default=True, help="Tokens of an answer, at most")
@click.option("--dialogues", type=FILE, help='Dialogues that follow the bundled ones, lines of {"messages": [...]}')
@click.option("--out", type=click.Path(path_type=Path), help="Append a line of JSON to this file")
def main(  # noqa: PLR0913, PLR0917 - click passes every option
    target: Path,
    drafts: tuple[Path, ...],
    threads: int,
    backend: str,
    kind: str,
    singles: tuple[str, ...],
    runs: int,
    tokens: int,
    before: int,
    pool: int,
    longest: int,
    dialogues: Path | None,
    out: Path | None,
) -> None:
    """Measure TARGET with all drafts against each of SINGLE."""
    ratios: defaultdict[str, list[float]] = defaultdict(list)
    with closing(Configurations(target, drafts, Device(2048, threads, backend=backend))) as configurations:
        configurations.require(singles)
        runtime, _ = configurations.runtime(PLAIN)
        with runtime:
            more = Dialogues(dialogues, _DIALOGUES).read() if dialogues is not None else ()
            known = list(taken(texts(runtime, kind, longest, more), pool))
        if sum(len(item.answer) for item in known) < tokens + before:
            raise click.ClickException(f"the texts of {kind} end before {tokens + before} tokens; give fewer --tokens")
        for run, asked in enumerate(parts(known, tokens + before, runs)):
            for name, ratio in compared(configurations, singles, asked, before).items():
                ratios[name].append(ratio)
            click.echo(f"run {run}: " + ", ".join(f"over {name} {each[-1]:.3f}" for name, each in ratios.items()))
    for name, each in ratios.items():
        click.echo(f"{kind}: all together over {name} {Ratio.of(each)} (standard error, {runs} runs)")
    if out is not None:
        with out.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"target": target.name, "backend": backend, "kind": kind, "ratios": ratios}) + "\n")


if __name__ == "__main__":
    main()
