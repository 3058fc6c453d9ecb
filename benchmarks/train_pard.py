"""Train a draft model of a pair to guess several tokens in one pass: PARD (An et al. 2025, arXiv 2504.18583).

    python -m benchmarks.train_pard TARGET DRAFT OUTPUT --mask 4095 --prompt "<|im_start|>user" [--steps 600]

The folders are checkpoints of one tokenizer; OUTPUT gets the draft's files with new weights and `pard_token` in
config.json, as the public PARD checkpoints have it, and `edgespec convert` takes it. The target writes the training
text itself, sampled at temperature 1 after the prompt. Of a window of text some places are chosen; after each of them
follow block - 1 mask tokens, which attend to the text before that place and to each other, as in a pass of the drafter.
The loss is the divergence from the target's distribution, after tokens and after masks alike.

Needs torch and transformers.
"""

from __future__ import annotations

import json
import math
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from edgespec.errors import MissingPackage
from edgespec.terminal.options import grouped_options

FOLDER = click.Path(path_type=Path, exists=True, file_okay=False)
_SEQUENCES = 48  # sampled at a time
_RATE = 1.5e-3
_WINDOW = 256  # tokens of text in an example
_PLACES = 48  # of these, after which masks follow
_BATCH = 8  # examples of a step


@dataclass(frozen=True, slots=True)
class Training:
    """How to train.

    Args:
        block: tokens that a pass is to guess.
        steps: of training.
    """

    mask: int
    block: int = 8
    steps: int = 600


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


def sampled_text(target: Any, prompt: list[int], tokens: int, length: int) -> Any:
    """Text that the target writes, int64 [sequences, length]."""
    torch, _ = _torch()
    rows: list[Any] = []
    started = time.perf_counter()
    while sum(len(row) for row in rows) * length < tokens:
        batch = torch.tensor([prompt] * _SEQUENCES)
        with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
            made = target.generate(
                batch,
                attention_mask=torch.ones_like(batch),
                do_sample=True,
                top_k=0,
                min_new_tokens=length - len(prompt),
                max_new_tokens=length - len(prompt),
                eos_token_id=None,
                pad_token_id=0,
            )
        rows.append(made)
        click.echo(f"{sum(map(len, rows)) * length} tokens of text after {time.perf_counter() - started:.0f} s")
    return torch.cat(rows)


def example(text: Any, training: Training) -> tuple[Any, Any, Any, Any]:
    """A window with masks: tokens, positions, what each attends to, and the positions of the text after which the
    target's distribution is to be predicted."""
    torch, _ = _torch()
    n, block = len(text), training.block
    places = torch.randperm(n - block)[:_PLACES].sort().values
    ahead = torch.arange(1, block)
    positions = torch.cat([torch.arange(n), (places[:, None] + ahead).flatten()])
    tokens = torch.cat([text, torch.full((len(places) * (block - 1),), training.mask)])
    # Of each entry the last token of text that it sees, and the number of its place; text is of no place.
    last = torch.cat([torch.arange(n), places.repeat_interleave(block - 1)])
    place = torch.cat([torch.full((n,), -1), torch.arange(len(places)).repeat_interleave(block - 1)])
    earlier = positions[None, :] <= positions[:, None]
    sees_text = (place[None, :] < 0) & (positions[None, :] <= last[:, None])
    return (
        tokens,
        positions,
        sees_text | ((place[None, :] == place[:, None]) & (place[:, None] >= 0) & earlier),
        positions,
    )


def losses(target: Any, draft: Any, texts: Any, training: Training) -> Any:
    """The divergence from the target by depth, float32 [block]."""
    torch, _ = _torch()
    tokens, positions, sees, wanted = (
        torch.stack(each) for each in zip(*(example(t, training) for t in texts), strict=True)
    )
    with torch.inference_mode():
        p = target(texts).logits.float().log_softmax(-1)
    p = p.clone().gather(1, wanted[..., None].expand(-1, -1, p.shape[-1]))
    bias = torch.zeros(sees.shape).masked_fill(~sees, -math.inf)[:, None]
    q = draft(tokens, attention_mask=bias.to(torch.bfloat16), position_ids=positions, use_cache=False).logits
    each = (p.exp() * (p - q.float().log_softmax(-1))).sum(-1)
    n = texts.shape[1]
    masked = each[:, n:].reshape(len(texts), -1, training.block - 1).mean((0, 1))
    return torch.cat([each[:, :n].mean()[None], masked])


def trained(target: Any, draft: Any, text: Any, training: Training) -> Iterator[tuple[int, Any]]:
    """Train the draft; yields the number of each step and its losses by depth."""
    torch, _ = _torch()
    optimizer = torch.optim.AdamW(draft.parameters(), betas=(0.9, 0.98), weight_decay=0.01)
    starts = text.shape[1] - _WINDOW + 1
    for step in range(training.steps):
        decay = 0.02 + 0.98 * (1 + math.cos(math.pi * step / training.steps)) / 2
        for group in optimizer.param_groups:
            group["lr"] = _RATE * min(1.0, (step + 1) / 20) * decay
        rows = torch.randint(len(text), (_BATCH,))
        begin = int(torch.randint(starts, (1,)))
        with torch.autocast("cpu", torch.bfloat16):
            each = losses(target, draft, text[rows, begin : begin + _WINDOW], training)
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
    click.option("--steps", default=600, show_default=True, help="Of training"),
)


@click.command()
@click.argument("target", type=FOLDER)
@click.argument("draft", type=FOLDER)
@click.argument("output", type=click.Path(path_type=Path))
@_OPTIONS
@click.option("--prompt", required=True, help="What the target's texts begin with; special tokens count")
@click.option("--tokens", default=300_000, show_default=True, help="Of text to train on")
@click.option("--text", "kept", type=click.Path(path_type=Path), help="Where the text is kept, for a second run")
def main(
    target: Path, draft: Path, output: Path, training: Training, prompt: str, tokens: int, kept: Path | None
) -> None:
    """Train DRAFT to guess blocks of TARGET's text and write the checkpoint OUTPUT."""
    torch, transformers = _torch()
    torch.manual_seed(0)
    teacher, student = _opened(target).eval(), _opened(draft).train()
    beginning = transformers.AutoTokenizer.from_pretrained(target)(prompt, add_special_tokens=False).input_ids
    if kept is not None and kept.exists():
        text = torch.load(kept)
    else:
        text = sampled_text(teacher, beginning, tokens, 512)
        if kept is not None:
            torch.save(text, kept)
    if bool((text == training.mask).any()):
        raise click.UsageError(f"the target's text has the token {training.mask}; give one that no text has")
    for step, each in trained(teacher, student, text, training):
        if step % 20 == 0:
            click.echo(f"step {step}: " + " ".join(f"{loss:.3f}" for loss in each.tolist()))
    output.mkdir(parents=True, exist_ok=True)
    for file in draft.iterdir():
        shutil.copyfile(file, output / file.name)
    student.to(torch.bfloat16).save_pretrained(output)
    config = json.loads((draft / "config.json").read_text("utf-8")) | {"pard_token": training.mask}
    (output / "config.json").write_text(json.dumps(config, indent=2) + "\n", "utf-8")


if __name__ == "__main__":
    main()
