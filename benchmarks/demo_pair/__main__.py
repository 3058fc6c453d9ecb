"""Train the demo pair's target, on a machine with a GPU in half an hour or on a CPU in a night.

    python -m benchmarks.demo_pair kit CHECKOUTS KIT --vocabulary 8192     texts and tokenizer, some 7 MB
    python -m benchmarks.demo_pair train KIT OUT --device cuda             needs no network; the same command goes on
    edgespec convert OUT/target target.gguf
    python -m benchmarks.demo_pair abilities target.gguf KIT               100 held-out cases of each task
    python -m benchmarks.demo_pair prompts KIT prompts.jsonl               for `edgespec distill`, which trains a draft
    python -m benchmarks.demo_pair drafts KIT target.gguf OUT --draft FILE the same on a GPU, for several drafts at once

docs/demo-pair.md has the sources, their licences, and what was measured.
"""

from __future__ import annotations

import json
import random
import time
from pathlib import Path
from typing import Any

import click

import edgespec

from . import vocabulary as bpe
from .abilities import abilities as measured
from .kit import copy_tokenizer, kit_texts, records, write_kit
from .sources import REPOSITORIES
from .tasks import TASKS, Maker

FOLDER = click.Path(path_type=Path, file_okay=False)
FILE = click.Path(path_type=Path, exists=True)
_REPORT = 20.0  # seconds between two lines
_MEASURE = 10.0  # minutes between two measurements of copying


@click.group()
def main() -> None:
    """The target of the demo pair: its texts, its training, what it can do."""


@main.command()
@click.argument("checkouts", type=FOLDER)
@click.argument("folder", type=FOLDER)
@click.option("--vocabulary", default=8192, show_default=True, help="Tokens of a tokenizer trained on the texts")
@click.option("--tokenizer", type=FILE, help="Take the tokenizer of this checkpoint instead")
def kit(checkouts: Path, folder: Path, vocabulary: int, tokenizer: Path | None) -> None:
    """Read the repositories checked out in the folder CHECKOUTS and write the kit FOLDER."""
    missing = [name for name in REPOSITORIES if not (checkouts / name).is_dir()]
    if missing:
        wanted = ", ".join(f"github.com/{REPOSITORIES[name]}" for name in missing)
        raise click.ClickException(f"{checkouts} has no folder {', '.join(missing)}; check out {wanted} there")
    for name, count in write_kit(checkouts, folder).items():
        click.echo(f"{name}: {count} records")
    if tokenizer is None:
        read = kit_texts(folder, "train")
        said = [" ".join(parts) for parts in read.passages] + [each["answer"] for each in read.talk]
        bpe.write(bpe.train(said, vocabulary), folder)
    else:
        copy_tokenizer(tokenizer, folder)


@main.command()
@click.argument("kit_folder", metavar="KIT", type=FOLDER)
@click.argument("output", metavar="OUT", type=FOLDER)
@click.option("--device", default="cpu", show_default=True, help="Of torch: cpu, cuda")
@click.option("--minutes", default=25.0, show_default=True, help="Of training, over all runs of this command")
@click.option("--grow", type=FILE, help="A Llama with the kit's tokenizer to begin with: a checkpoint, or a GGUF file")
@click.option("--refine", type=FILE, help="A target that this command trained, as --grow: it is trained further")
@click.option(
    "--draft", "drafts", multiple=True, help="With --refine: trained beside it; a file, or draft-large, a new one"
)
@click.option("--threads", default=0, help="Of torch on a CPU; 0: as torch chooses")
def train(kit_folder: Path, output: Path, **options: Any) -> None:
    """Train on KIT and write OUT/target and, unless it is refined, OUT/draft. An unfinished training in OUT goes on."""
    from . import start  # noqa: PLC0415 - imports torch

    run = start.opened(start.Wanted(kit_folder, output, **options))
    reported, measured_at = 0.0, run.seconds
    for figures in run.run():
        if time.monotonic() - reported > _REPORT:
            click.echo(" ".join(f"{name}={value:.4g}" for name, value in figures.items()))
            reported = time.monotonic()
        if run.seconds - measured_at > 60 * _MEASURE:
            measured_at = run.seconds
            click.echo(json.dumps(start.copying(run, kit_folder, ("repeat", "rewrite"), 50)))
    start.finish(run, kit_folder, output)
    click.echo(f"{output}: {run.tokens} tokens seen in {run.seconds / 60:.1f} minutes")
    click.echo(json.dumps(start.copying(run, kit_folder, TASKS, 100)))


@main.command()
@click.argument("kit_folder", metavar="KIT", type=FOLDER)
@click.argument("target", type=FILE)
@click.argument("output", metavar="OUT", type=FOLDER)
@click.option(
    "--draft",
    "steps",
    multiple=True,
    help="Trained to guess in steps; a file, or draft or draft-large, new, or layers:3,4,5 of the target",
)
@click.option("--pard", "blocks", multiple=True, help="As --draft: trained to guess in one pass, by mask tokens")
@click.option(
    "--head", "heads", multiple=True, type=click.Choice(("eagle3", "medusa")), help="Of the target; all of its tokens"
)
@click.option(
    "--mask", type=click.IntRange(0), default=190, show_default=True, help="Mask token of --pard, which no text has"
)
@click.option("--device", default="cpu", show_default=True, help="Of torch: cpu, cuda")
@click.option("--minutes", default=2.0, show_default=True, help="Of training, after the answers")
@click.option(
    "--share",
    type=click.FloatRange(0, 1, min_open=True),
    default=1.0,
    show_default=True,
    help="Of the dialogues that are asked",
)
def drafts(kit_folder: Path, target: Path, output: Path, **options: Any) -> None:
    """Train drafts of TARGET on its own answers to KIT's dialogues and tasks, and write each as a folder in OUT."""
    from . import drafting  # noqa: PLC0415 - imports torch

    for line in drafting.run(drafting.Wanted(kit_folder, target, output, **options)):
        click.echo(line)


@main.command()
@click.argument("model", type=click.Path(path_type=Path, exists=True))
@click.argument("kit_folder", metavar="KIT", type=FOLDER)
@click.option("--cases", default=100, show_default=True)
def abilities(model: Path, kit_folder: Path, cases: int) -> None:
    """Ask MODEL, a converted file or a pair, held-out cases of each task."""
    held = kit_texts(kit_folder, "held")
    with edgespec.load(model) as runtime:
        for each in measured(runtime, held, cases):
            click.echo(f"| {each.task} | {each.exact:.0%} | {each.rouge:.2f} |")


@main.command()
@click.argument("kit_folder", metavar="KIT", type=FOLDER)
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--count", default=3000, show_default=True)
@click.option(
    "--split",
    type=click.Choice(("train", "held")),
    default="train",
    show_default=True,
    help="Texts that the pair was trained on, or held-out ones",
)
def prompts(kit_folder: Path, file: Path, count: int, split: str) -> None:
    """Write COUNT prompts of all tasks, and a dialogue for each 20 of them, for `edgespec distill --prompts`."""
    rng = random.Random("prompts")  # noqa: S311 - no secret
    maker = Maker(kit_texts(kit_folder, split), rng, shortest=8, longest=60)
    cases = [{"prompt": maker.case(rng.choice(TASKS)).prompt} for _ in range(count)]
    drawn = rng.sample(records(kit_folder, "dialogues", split), count // 20)
    lines = [*cases, *({"messages": each["messages"]} for each in drawn)]
    file.write_text("".join(f"{json.dumps(line, ensure_ascii=False)}\n" for line in lines), "utf-8")


if __name__ == "__main__":
    main()
