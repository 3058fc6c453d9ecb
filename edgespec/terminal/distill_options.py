"""The options of `edgespec distill`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import click

from .options import PATH, grouped_options


@dataclass(frozen=True, slots=True)
class DistillOptions:
    """What learns from what, on which answers, and how; None takes a default."""

    target: Path
    draft: Path | None
    out: Path
    prompts: tuple[Path, ...]
    remembered: bool
    from_scratch: str | None
    head: str | None
    lora: int | None
    temps: tuple[float, ...]
    answers: int
    max_tokens: int
    epochs: int
    rate: float | None
    batch: int
    ctx: int
    threads: int
    quant: str | None
    collect: bool
    yes: bool
    force: bool


_COUNT = click.IntRange(1)
distill_options = grouped_options(
    DistillOptions,
    "options",
    click.argument("target", type=PATH),
    click.argument("draft", type=PATH, required=False),
    click.option(
        "--out", type=PATH, required=True, metavar="FOLDER", help="The pair, and the state of an unfinished run"
    ),
    click.option(
        "--prompts",
        multiple=True,
        type=PATH,
        metavar="FILE",
        help='What the target is asked: JSON lines with "messages" or "prompt" if the name ends in .jsonl, else a '
        "question a line; several times for several  [default: bundled ones, which are few]",
    ),
    click.option("--remembered", is_flag=True, help="Also what was asked in chats that --remember kept"),
    click.option("--from-scratch", metavar="SIZE", help="A new draft of 20M, say, parameters; TARGET is a checkpoint"),
    click.option(
        "--head",
        type=click.Choice(["medusa", "eagle3"]),
        help="A head of the target in place of a draft model: of several guesses from one state, or EAGLE-3",
    ),
    click.option(
        "--lora",
        type=_COUNT,
        metavar="RANK",
        help="Train low-rank changes of DRAFT, which take a fourth of the memory  [default: all weights]",
    ),
    click.option(
        "--temp",
        "temps",
        multiple=True,
        type=click.FloatRange(0),
        default=(0.0, 0.7),
        show_default=True,
        metavar="T",
        help="Temperature of the answers; several times for several",
    ),
    click.option(
        "--answers", type=_COUNT, default=1, show_default=True, metavar="N", help="To a prompt at each --temp above 0"
    ),
    click.option("--max-tokens", type=_COUNT, default=256, show_default=True, metavar="N", help="Longest answer"),
    click.option(
        "--epochs", type=_COUNT, default=3, show_default=True, metavar="N", help="Passes over the answers, at most"
    ),
    click.option(
        "--rate",
        type=click.FloatRange(0, min_open=True),
        metavar="RATE",
        help="Highest learning rate  [default: 1e-4; 1e-3 from scratch and with --lora; 2e-3 and 3e-3 for heads]",
    ),
    click.option(
        "--batch", type=_COUNT, default=4096, show_default=True, metavar="N", help="Tokens of a training step"
    ),
    click.option("--ctx", default=0, metavar="N", help="Context of the answers in tokens  [default: as in chat]"),
    click.option("--threads", default=0, metavar="N", help="CPU threads of the answers  [default: one per core]"),
    click.option("--quant", metavar="NAME", help="Quantization of the draft, and of a TARGET that is converted"),
    click.option("--collect", is_flag=True, help="Only collect the answers, which needs no torch"),
    click.option("-y", "--yes", is_flag=True, help="Download checkpoints without asking"),
    click.option("--force", is_flag=True, help="Train again, and replace the pair in --out"),
)
