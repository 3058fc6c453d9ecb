"""How much of one and the same drafter's drafts each verifier accepts: tokens per pass of the target.

    python -m benchmarks.verifiers TARGET.gguf DRAFT.gguf DIALOGUES.jsonl [--dialogues 100] [--k 4 --k 7]

The model answers each dialogue's first turn, past its own end, with a
fixed draft length. Tokens and passes are counted, nothing is timed. Intervals are by bootstrap over dialogues (Efron
1979), 95%; those of the ratios resample both verifiers' counts of a dialogue together.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import click
import numpy as np

from edgespec.controller.fixed import Fixed
from edgespec.engine import Engine, Request
from edgespec.sampling import Sampling
from edgespec.types import Doubles, Ints
from edgespec.verify import VERIFIERS, verifier

from .bench import CONTEXT, Bench, Endless, answer, bench
from .dialogues import Dialogues, dialogues
from .report import table

_COLUMNS = ("", "tokens per pass", "tokens", "passes", "ratio to the row above")
_RESAMPLES = 4000


@dataclass
class Counts:
    """Tokens and passes of one verifier, dialogue by dialogue."""

    tokens: list[int] = field(default_factory=list)
    passes: list[int] = field(default_factory=list)

    def lengths(self, picks: Ints) -> Doubles:
        """The mean accepted length over each of the choices of dialogues `picks` [n, dialogues], float64 [n]."""
        tokens, passes = np.array(self.tokens, dtype=np.float64), np.array(self.passes, dtype=np.float64)
        lengths: Doubles = tokens[picks].sum(axis=1) / passes[picks].sum(axis=1)
        return lengths


def report(counts: dict[str, Counts]) -> str:
    """A row for each verifier: tokens per pass, and the ratio to the verifier before it."""
    n = len(next(iter(counts.values())).tokens)
    picks = np.random.default_rng(0).integers(0, n, (_RESAMPLES, n))
    picks[0] = np.arange(n)  # the first is what was measured
    rows: list[list[str]] = []
    before: Doubles | None = None
    for name, count in counts.items():
        lengths = count.lengths(picks)
        ratio = "" if before is None else _interval(lengths / before)
        rows.append([name, _interval(lengths), str(sum(count.tokens)), str(sum(count.passes)), ratio])
        before = lengths
    return table(_COLUMNS, rows)


def _interval(values: Doubles) -> str:
    low, high = np.percentile(values, [2.5, 97.5])
    return f"{values[0]:.3f} [{low:.3f}, {high:.3f}]"


@click.command()
@bench
@dialogues(100)
@click.option("--max-tokens", default=256, show_default=True)
@click.option("--temp", default=1.0, show_default=True)
@click.option("--top-p", default=1.0, show_default=True)
@click.option("--k", "lengths", multiple=True, type=int, default=(4, 7), show_default=True, help="Draft lengths")
def main(
    bench: Bench, dialogues: Dialogues, max_tokens: int, temp: float, top_p: float, lengths: tuple[int, ...]
) -> None:
    """Compare the verifiers on TARGET with DRAFT on DIALOGUES."""
    pieces, drafter = Endless(bench.vocabulary), bench.model()
    prompts = dialogues.openings(bench.vocabulary, CONTEXT - max_tokens)
    counts = {k: {name: Counts() for name in VERIFIERS} for k in lengths}
    with click.progressbar(list(enumerate(prompts))) as dialogue:
        for seed, prompt in dialogue:
            request = Request(prompt, Sampling(temp, top_p=top_p, seed=seed), max_tokens)
            for k, name in ((k, name) for k in lengths for name in VERIFIERS):
                engine = Engine(bench.session, pieces, Fixed([drafter], k), verifier(name), bench.interrupt)
                _, stats = answer(engine, request)
                counts[k][name].tokens.append(stats.tokens)
                counts[k][name].passes.append(stats.rounds)
    for k, rows in counts.items():
        click.echo(f"K = {k}, temperature {temp:g}, top-p {top_p:g}, {len(prompts)} dialogues")
        click.echo(report(rows))


if __name__ == "__main__":
    main()
