"""How much of one and the same drafter's drafts each verifier accepts: tokens per pass of the target.

    python -m benchmarks.verifiers TARGET.gguf DRAFT.gguf DIALOGUES.jsonl [--dialogues 100] [--k 4 --k 7]

Every line of DIALOGUES is {"messages": [...]}. The model answers each dialogue's first turn, past its own end, with a
fixed draft length. Tokens and passes are counted, nothing is timed. Intervals are by bootstrap over dialogues (Efron
1979), 95%; those of the ratios resample both verifiers' counts of a dialogue together.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import click
import numpy as np

from edgespec.backends import Device, Interrupt, open_model
from edgespec.control import Fixed
from edgespec.drafters.model import ModelDrafter
from edgespec.engine import Engine
from edgespec.sampling import Sampling
from edgespec.template import ChatTemplate
from edgespec.types import Doubles, Ints
from edgespec.verify import VERIFIERS, verifier

from .speed import Endless, answers, dialogue_prompts

_CONTEXT = 2048
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
    rows, before = [], None
    for name, count in counts.items():
        lengths = count.lengths(picks)
        row = f"{name:<10} {_interval(lengths)}  {sum(count.tokens):8} {sum(count.passes):8}"
        rows.append(row if before is None else f"{row}  {_interval(lengths / before)}")
        before = lengths
    return "\n".join(rows)


def _interval(values: Doubles) -> str:
    low, high = np.percentile(values, [2.5, 97.5])
    return f"{values[0]:6.3f} [{low:.3f}, {high:.3f}]"


@click.command()
@click.argument("target", type=click.Path(path_type=Path, exists=True))
@click.argument("draft", type=click.Path(path_type=Path, exists=True))
@click.argument("dialogues", type=click.Path(path_type=Path, exists=True))
@click.option("--dialogues", "limit", default=100, show_default=True)
@click.option("--max-tokens", default=256, show_default=True)
@click.option("--threads", default=1, show_default=True)
@click.option("--temp", default=1.0, show_default=True)
@click.option("--top-p", default=1.0, show_default=True)
@click.option("--k", "lengths", multiple=True, type=int, default=(4, 7), show_default=True, help="Draft lengths")
def main(  # noqa: PLR0913, PLR0917 - one for each option
    target: Path,
    draft: Path,
    dialogues: Path,
    limit: int,
    max_tokens: int,
    threads: int,
    temp: float,
    top_p: float,
    lengths: tuple[int, ...],
) -> None:
    """Compare the verifiers on TARGET with DRAFT on DIALOGUES."""
    device, interrupt = Device(context=_CONTEXT, threads=threads), Interrupt()
    model = open_model(target, device, interrupt)
    vocabulary, session = model.vocabulary, model.session(_CONTEXT)
    drafter = ModelDrafter(open_model(draft, device, interrupt).session(_CONTEXT), vocabulary.size)
    prompts = dialogue_prompts(dialogues, ChatTemplate(vocabulary), limit, _CONTEXT - max_tokens, first=True)
    counts = {k: {name: Counts() for name in VERIFIERS} for k in lengths}
    with click.progressbar(list(enumerate(prompts))) as dialogue:
        for seed, turns in dialogue:
            for k, name in ((k, name) for k in lengths for name in VERIFIERS):
                engine = Engine(session, Endless(vocabulary), Fixed([drafter], k), verifier(name), interrupt)
                for _, finished in answers(engine, turns, Sampling(temp, top_p=top_p, seed=seed), max_tokens):
                    counts[k][name].tokens.append(finished.stats.tokens)
                    counts[k][name].passes.append(finished.stats.rounds)
    for k, rows in counts.items():
        click.echo(f"K = {k}, temperature {temp:g}, top-p {top_p:g}, {len(prompts)} dialogues")
        click.echo(f"{'':<10} {'tokens per pass':<24} {'tokens':>8} {'passes':>8}  ratio to the row above")
        click.echo(report(rows))


if __name__ == "__main__":
    main()
