"""How many guesses of a draft are right, along answers of the target: a pass over a dialogue says it of all places."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import cycle, islice
from typing import Any

import torch

from .answers import Dialogue
from .distilling import taught_by
from .masks import Masked, masked
from .packing import Windows, windows
from .students import DEPTH, Student, Taught

_ROWS, _WINDOW = 4, 1024


def right_by_depth(target: Any, student: Student, dialogues: Sequence[Dialogue]) -> list[float]:
    """By depth the share of right guesses among those before which all are right, at random places of answers."""
    device = next(target.parameters()).device
    generator = torch.Generator(device).manual_seed(0)
    tried, right = torch.zeros(DEPTH), torch.zeros(DEPTH)
    for batch in _batches(dialogues):
        here = batch.to(str(device))
        made = masked(here, student.pard, generator)
        with torch.no_grad():
            hits, counts = _hits(student, taught_by(target, here), made)
        before = torch.cat([torch.ones_like(hits[..., :1]), hits[..., :-1]], -1).long().cumprod(-1) > 0
        tried[: hits.shape[-1]] += (before & counts).sum((0, 1)).cpu()
        right[: hits.shape[-1]] += (before & hits).sum((0, 1)).cpu()
    return [float(share) for share in (right / tried.clamp_min(1))[tried > 0]]


def _batches(dialogues: Sequence[Dialogue]) -> list[Windows]:
    """Windows with as many tokens as the dialogues have, of which a few come twice or not at all."""
    size = sum(len(each.tokens) for each in dialogues)
    rows = cycle([(each.tokens, each.weights) for each in dialogues])
    source = windows(rows, _ROWS, _WINDOW, random.Random(0))  # noqa: S311 - no secret
    return list(islice(source, -(-size // (_ROWS * _WINDOW))))


def _hits(student: Student, taught: Taught, made: Masked) -> tuple[torch.Tensor, torch.Tensor]:
    """bool (rows, places, depth): whether the guess is right, and whether it is one of an answer."""
    guesses = student.guesses(taught, made)[..., :DEPTH]
    tokens, at = taught.batch.tokens, made.before[..., : guesses.shape[-1]]
    said = tokens.gather(1, (at + 1).clamp_max(tokens.shape[1] - 1).flatten(1)).view_as(at)
    counts = torch.cat([made.counts[..., :1], made.counts], -1)[..., : guesses.shape[-1]]
    return (guesses == said) & counts, counts
