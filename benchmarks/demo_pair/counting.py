"""How many guesses of a draft are right, along answers of the target: a pass over a dialogue says it of all places."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import cycle, islice

import torch

from .answers import Dialogue
from .distilling import Masked, Pard, Student, masked
from .packing import Windows, windows

_DEPTH = 8
_ROWS, _WINDOW = 4, 1024


def right_by_depth(student: Student, dialogues: Sequence[Dialogue]) -> list[float]:
    """By depth the share of right guesses among those before which all are right, at random places of answers."""
    device = next(student.model.parameters()).device
    generator = torch.Generator(device).manual_seed(0)
    tried, right = torch.zeros(_DEPTH), torch.zeros(_DEPTH)
    for batch in _batches(dialogues):
        here = batch.to(str(device))
        made = masked(here, student.pard or Pard(0, _DEPTH), generator)
        with torch.no_grad():
            hits, counts = _hits(student, here, made)
        before = torch.cat([torch.ones_like(hits[..., :1]), hits[..., :-1]], -1).long().cumprod(-1) > 0
        tried += (before & counts).sum((0, 1)).cpu()
        right += (before & hits).sum((0, 1)).cpu()
    return [float(share) for share in right / tried.clamp_min(1)]


def _batches(dialogues: Sequence[Dialogue]) -> list[Windows]:
    """Windows with as many tokens as the dialogues have, of which a few come twice or not at all."""
    size = sum(len(each.tokens) for each in dialogues)
    rows = cycle([(each.tokens, each.weights) for each in dialogues])
    source = windows(rows, _ROWS, _WINDOW, random.Random(0))  # noqa: S311 - no secret
    return list(islice(source, -(-size // (_ROWS * _WINDOW))))


def _hits(student: Student, batch: Windows, made: Masked) -> tuple[torch.Tensor, torch.Tensor]:
    """bool (rows, places, depth): whether the guess is right, and whether it is one of an answer."""
    size = batch.tokens.shape[1]
    at = torch.cat([made.aims[..., :1] - 1, made.aims], -1)[..., :_DEPTH]
    said = batch.tokens.gather(1, (at + 1).clamp_max(size - 1).flatten(1)).view_as(at)
    if student.pard is None:
        rows = student.model(batch.tokens, attention_mask=batch.mask(), position_ids=batch.positions).logits
        guesses = rows.argmax(-1).gather(1, at.flatten(1)).view_as(at)
    else:
        rows = student.model(made.tokens, attention_mask=made.sees, position_ids=made.positions).logits.argmax(-1)
        masks = rows[:, size:].view(made.aims.shape)
        guesses = torch.cat([rows.gather(1, at[..., 0])[..., None], masks], -1)[..., :_DEPTH]
    counts = torch.cat([made.counts[..., :1], made.counts], -1)[..., :_DEPTH]
    return (guesses == said) & counts, counts
