"""What distillation gains: a worsened draft and a new one, before and after, at several temperatures.

    python -m benchmarks.distillation TARGET DRAFT PROMPTS.jsonl --work DIR [--acceptance 0.6] [--from-scratch 2M]

TARGET and DRAFT are checkpoints of a pair. Noise is added to the matrices of DRAFT until the target accepts about 60%
of its guesses at all places of its answers to held-out prompts (`benchmarks.overlap`). `edgespec distill` then trains
it on the target's answers at temperature 0, and again at 0.7, and a random draft of the size of --from-scratch at 0.
Acceptance is measured at all places and by real speculation, on held-out prompts, at temperatures 0, 0.8 and 1. A run
that was interrupted goes on.

Needs torch and transformers.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import click

import edgespec
from edgespec import Device, Runtime, Sampling, Speculation
from edgespec.converters import convert
from edgespec.distill import prompts, student
from edgespec.terminal.distill import distill
from edgespec.terminal.distill_options import DistillOptions
from edgespec.tools.draft_value import DEPTH, DraftValue, measure_draft

from .overlap import answers, overlap

_TRIALS = 7  # halvings of the range of noise
_LOUDEST = 1.0  # standard deviations of a matrix
_TEMPERATURES = (0.0, 0.8, 1.0)
FOLDER = click.Path(path_type=Path, exists=True, file_okay=False)


@dataclass(frozen=True, slots=True)
class Measuring:
    """How acceptance is measured: the target's GGUF file, held-out prompts, how many of them, tokens of an answer."""

    target: Path
    file: Path
    count: int
    max_tokens: int

    def value(self, draft: Path, temperature: float, count: int | None = None) -> DraftValue:
        """The value of the GGUF file `draft`."""
        speculation = Speculation(("model",), DEPTH)
        with edgespec.load(
            self.target, draft, device=Device(context=2048, threads=2), speculation=speculation
        ) as runtime:
            asked = self._asked(runtime, count or self.count)
            *_, last = measure_draft(runtime, asked, Sampling(temperature=temperature, seed=1), self.max_tokens)
        return last

    def overlap(self, draft: Path, temperature: float, count: int | None = None) -> float:
        """The acceptance rate of the GGUF file `draft` at all places of the target's answers, 0 to 1."""
        with edgespec.load(self.target, device=Device(2048, 2), speculation=Speculation((), 0)) as runtime:
            asked = self._asked(runtime, count or self.count)
            said = answers(runtime, asked, temperature, self.max_tokens)
        return overlap(self.target, draft, asked, said, temperature)

    def _asked(self, runtime: Runtime, count: int) -> Sequence[Sequence[int]]:
        """Held-out prompts of all dialogues."""
        found = [p for s in prompts.of_files([self.file]) if s.held_out for p in s.prompts(runtime)]
        step = max(1, len(found) // count)
        return [p.tokens for p in found if len(p.tokens) < runtime.context - self.max_tokens][::step]


def converted(folder: Path, output: Path) -> Path:
    """The GGUF file of a checkpoint."""
    for _ in convert(folder, output, force=True):
        pass
    return output


def noisy(draft: Path, loudness: float, output: Path) -> None:
    """A copy of a checkpoint with normal noise on its matrices, in standard deviations of each."""
    import torch  # noqa: PLC0415

    model, noise = student.open_student(draft), torch.Generator().manual_seed(0)
    with torch.no_grad():
        for each in model.parameters():
            if each.ndim == 2:
                each.add_(loudness * each.std() * torch.randn(each.shape, generator=noise))
    student.write(model, draft, output)


def worsened(draft: Path, measuring: Measuring, wanted: float, work: Path) -> Path:
    """A copy of the draft of which about the share `wanted` of guesses is accepted, at all places of answers."""
    output, trial = work / "draft", work / "trial"
    if output.exists():
        return output
    low, high = 0.0, _LOUDEST
    for _ in range(_TRIALS):
        loudness = (low + high) / 2
        noisy(draft, loudness, trial)
        share = measuring.overlap(converted(trial, work / "trial.gguf"), 0.0, measuring.count // 3)
        click.echo(f"noise of {loudness:.3f} standard deviations: {share:.1%} accepted")
        low, high = (loudness, high) if share > wanted else (low, loudness)
    return trial.rename(output)


def distilled(folder: Path, given: dict[str, Any]) -> None:
    """Run `edgespec distill` with `given`, unless it is done."""
    if (folder / "pair.json").exists():
        return
    usual: dict[str, Any] = dict.fromkeys(field.name for field in fields(DistillOptions))
    usual |= {"answers": 1, "batch": 4096, "ctx": 2048, "threads": 2, "temps": (0.0,), "max_tokens": 64}
    usual |= {"remembered": False, "collect": False, "yes": True, "force": False}
    distill(DistillOptions(**usual | given | {"out": folder}))


def row(name: str, everywhere: Sequence[float], values: Sequence[DraftValue]) -> str:
    """A row of the table, by temperature: acceptance at all places and of the first guesses of rounds, tokens a pass
    of K = 4; the speedup."""
    cells = [
        f"{share:.1%}; {value.acceptance[0]:.1%}, {value.length(4):.2f}"
        for share, value in zip(everywhere, values, strict=True)
    ]
    k, gain = values[0].best
    return f"| {name} | {' | '.join(cells)} | {f'{gain:.2f}x at K = {k}' if k else 'none'} |"


@click.command()
@click.argument("target", type=FOLDER)
@click.argument("draft", type=FOLDER)
@click.argument("file", metavar="PROMPTS", type=click.Path(path_type=Path, exists=True))
@click.option("--work", type=click.Path(path_type=Path), required=True, help="Folder of all files")
@click.option("--acceptance", default=0.6, show_default=True, help="Of the worsened draft")
@click.option("--from-scratch", "scratch", default="2M", show_default=True, help="Size of the new draft")
@click.option("--epochs", default=3, show_default=True)
@click.option("--rate", default=1e-3, show_default=True, help="Of learning")
@click.option("--count", default=90, show_default=True, help="Held-out prompts to measure on")
@click.option("--max-tokens", default=64, show_default=True, help="Of an answer")
def main(  # noqa: PLR0913, PLR0917 - click passes every option
    target: Path,
    draft: Path,
    file: Path,
    work: Path,
    acceptance: float,
    scratch: str,
    epochs: int,
    rate: float,
    count: int,
    max_tokens: int,
) -> None:
    """Report what distillation gains for TARGET."""
    work.mkdir(parents=True, exist_ok=True)
    measuring = Measuring(converted(target, work / "target.gguf"), file, count, max_tokens)
    bad = worsened(draft, measuring, acceptance, work)
    runs = {"cold": (bad, None, 0.0), "warm": (bad, None, 0.7), "new": (None, scratch, 0.0)}
    common = {"target": target, "prompts": (file,), "epochs": epochs, "rate": rate, "max_tokens": max_tokens}
    for name, (source, size, temperature) in runs.items():
        click.echo(f"--- {name}: from {source or size}, answers at temperature {temperature:g}")
        folder = work / name
        with suppress(FileExistsError, FileNotFoundError):  # the answers are the same
            if temperature == 0.0 and name != "cold":
                shutil.copytree(work / "cold" / ".distill" / "answers", folder / ".distill" / "answers")
        distilled(folder, {**common, "draft": source, "from_scratch": size, "temps": (temperature,)})
    drafts = {
        "as it was": converted(draft, work / "original.gguf"),
        "worsened": converted(bad, work / "worsened.gguf"),
        **{f"distilled: {name}": work / name / "draft.gguf" for name in runs},
    }
    first = measuring.value(drafts["as it was"], 0.0)
    click.echo("prices of passes, ms: " + json.dumps([round(1e3 * price, 2) for price in first.curve]))
    click.echo(f"| draft | {' | '.join(f'T = {each:g}' for each in _TEMPERATURES)} | speedup expected at T = 0 |")
    click.echo("|---|" + "---|" * (len(_TEMPERATURES) + 1))
    for name, path in drafts.items():
        values = [measuring.value(path, temperature) for temperature in _TEMPERATURES]
        same = [replace(each, curve=first.curve, step=first.step) for each in values]
        click.echo(row(name, [measuring.overlap(path, temperature) for temperature in _TEMPERATURES], same))


if __name__ == "__main__":
    main()
