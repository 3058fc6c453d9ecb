"""Train a draft model of a pair to guess several tokens in one pass: PARD (An et al. 2025, arXiv 2504.18583).

    python -m benchmarks.train_pard TARGET DRAFT OUTPUT DIALOGUES --mask 190 [--dialogues 150] [--steps 150]

TARGET and DRAFT are checkpoints with one tokenizer; OUTPUT gets the draft's files with new weights and `pard_token` in
config.json, as the public PARD checkpoints have it: `edgespec convert` takes it. In a window of the dialogues some
places are chosen; after each of them follow block - 1 mask tokens, which attend to the text before that place and to
each other, as in a pass of the drafter. The loss is the divergence from the target's distribution of the next token
after the true text, after tokens and after masks alike; its likeliest tokens are computed once for all windows.

Needs torch and transformers.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from edgespec.errors import MissingPackage
from edgespec.terminal.options import grouped_options

from .dialogues import Dialogues, dialogues

FOLDER = click.Path(path_type=Path, exists=True, file_okay=False)
_RATE = 1.5e-3
_WINDOW = 256  # tokens of text in an example
_PLACES = 48  # of these, after which masks follow
_BATCH = 8  # examples of a step
_KEPT = 64  # likeliest tokens of the target's distribution
_CONTEXT = 512  # tokens of text of which the target predicts the next ones at a time, after as many others


@dataclass(frozen=True, slots=True)
class Training:
    """How to train.

    Args:
        block: tokens that a pass is to guess.
        steps: of training.
    """

    mask: int
    block: int = 8
    steps: int = 150


def _torch() -> tuple[Any, Any]:
    try:
        import torch  # noqa: PLC0415
        import transformers  # noqa: PLC0415
    except ImportError as error:
        raise MissingPackage(f"training needs {error.name}; install it with `pip install torch transformers`") from None
    return torch, transformers


def _opened(folder: Path) -> Any:
    torch, transformers = _torch()
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="sdpa")


def text_of(chosen: Dialogues, folder: Path) -> Any:
    """The dialogues one after another, int64 [tokens]."""
    torch, transformers = _torch()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    texts = [tokenizer.apply_chat_template(messages, tokenize=False) for messages in chosen.read()]
    return torch.tensor([token for text in texts for token in tokenizer(text, add_special_tokens=False).input_ids])


def taught(target: Any, text: Any) -> tuple[Any, Any]:
    """The target's likeliest tokens after each token of the text, int64 [tokens, kept], and their probabilities."""
    torch, _ = _torch()
    tokens, probs = [], []
    with torch.inference_mode():
        for start in range(0, len(text), _CONTEXT):
            end = min(start + _CONTEXT, len(text))
            logits = target(text[None, max(0, start - _CONTEXT) : end]).logits[0, start - end :]
            likely = logits.float().softmax(-1).topk(_KEPT)
            tokens.append(likely.indices)
            probs.append(likely.values / likely.values.sum(-1, keepdim=True))
    return torch.cat(tokens).clone(), torch.cat(probs).clone()


def example(text: Any, training: Training) -> tuple[Any, Any, Any]:
    """A window with masks: tokens, positions, and what each attends to. What an entry has to predict is the target's
    distribution after the text up to its position."""
    torch, _ = _torch()
    n, block = len(text), training.block
    places = torch.randperm(n - block)[:_PLACES].sort().values
    ahead = torch.arange(1, block)
    positions = torch.cat([torch.arange(n), (places[:, None] + ahead).flatten()])
    tokens = torch.cat([text, torch.full((len(places) * (block - 1),), training.mask)])
    # Of each entry the last token of text that it sees, and the number of its place; text is of no place.
    last = torch.cat([torch.arange(n), places.repeat_interleave(block - 1)])
    place = torch.cat([torch.full((n,), -1), torch.arange(len(places)).repeat_interleave(block - 1)])
    text_before = (place[None, :] < 0) & (positions[None, :] <= last[:, None])
    masks_before = (
        (place[None, :] == place[:, None]) & (place[:, None] >= 0) & (positions[None, :] <= positions[:, None])
    )
    return tokens, positions, text_before | masks_before


def losses(draft: Any, text: Any, teacher: tuple[Any, Any], training: Training) -> Any:
    """The divergence from the target by depth in a batch of windows, float32 [block]."""
    torch, _ = _torch()
    starts = torch.randint(len(text) - _WINDOW, (_BATCH,)).tolist()
    made = [example(text[start : start + _WINDOW], training) for start in starts]
    tokens, positions, sees = (torch.stack(each) for each in zip(*made, strict=True))
    bias = torch.zeros(sees.shape, dtype=torch.bfloat16).masked_fill(~sees, -math.inf)[:, None]
    logits = draft(tokens, attention_mask=bias, position_ids=positions, use_cache=False).logits
    places = positions + torch.tensor(starts)[:, None]
    likely, p = teacher[0][places], teacher[1][places]
    each = (p * (p.clamp_min(1e-9).log() - logits.float().log_softmax(-1).gather(-1, likely))).sum(-1)
    masked = each[:, _WINDOW:].reshape(_BATCH, -1, training.block - 1).mean((0, 1))
    return torch.cat([each[:, :_WINDOW].mean()[None], masked])


def trained(draft: Any, text: Any, teacher: tuple[Any, Any], training: Training) -> Iterator[tuple[int, Any]]:
    """Train the draft; yields the number of each step and its losses by depth."""
    torch, _ = _torch()
    optimizer = torch.optim.AdamW(draft.parameters(), betas=(0.9, 0.98), weight_decay=0.01)
    for step in range(training.steps):
        decay = 0.02 + 0.98 * (1 + math.cos(math.pi * step / training.steps)) / 2
        for group in optimizer.param_groups:
            group["lr"] = _RATE * min(1.0, (step + 1) / 10) * decay
        with torch.autocast("cpu", torch.bfloat16):
            each = losses(draft, text, teacher, training)
        optimizer.zero_grad()
        each.mean().backward()
        torch.nn.utils.clip_grad_norm_(draft.parameters(), 1.0)
        optimizer.step()
        yield step, each.detach()


_OPTIONS = grouped_options(
    Training,
    "training",
    click.option("--mask", type=int, required=True, help="A token that no text has"),
    click.option("--block", default=8, show_default=True, help="Tokens that a pass is to guess"),
    click.option("--steps", default=150, show_default=True, help="Of training"),
)


@click.command()
@click.argument("target", type=FOLDER)
@click.argument("draft", type=FOLDER)
@click.argument("output", type=click.Path(path_type=Path))
@dialogues(150)
@_OPTIONS
def main(target: Path, draft: Path, output: Path, dialogues: Dialogues, training: Training) -> None:
    """Train DRAFT to guess blocks of TARGET's text and write the checkpoint OUTPUT."""
    torch, _ = _torch()
    torch.manual_seed(0)
    student, text = _opened(draft).train(), text_of(dialogues, target)
    if bool((text == training.mask).any()):
        raise click.UsageError(f"the text has the token {training.mask}; give one that no text has")
    click.echo(f"{len(text)} tokens of text")
    teacher = taught(_opened(target).eval(), text)
    for step, each in trained(student, text, teacher, training):
        if step % 10 == 0:
            click.echo(f"step {step}: " + " ".join(f"{loss:.3f}" for loss in each.tolist()))
    output.mkdir(parents=True, exist_ok=True)
    for file in draft.iterdir():
        (output / file.name).write_bytes(file.read_bytes())
    student.to(torch.bfloat16).save_pretrained(output)
    own = {"pard_token": training.mask, "edgespec_parallel": training.block}
    config = json.loads((draft / "config.json").read_text("utf-8")) | own
    (output / "config.json").write_text(json.dumps(config, indent=2) + "\n", "utf-8")


if __name__ == "__main__":
    main()
