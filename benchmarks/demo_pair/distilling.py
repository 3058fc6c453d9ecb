"""Drafts trained on the target's own answers, several beside each other: the target's pass is paid once.

A draft guesses step by step, or in one pass by mask tokens (PARD, arXiv 2504.18583). The loss of every guess is its KL
divergence from the target's distribution at that place of an answer (DistillSpec, arXiv 2310.08461).
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from .answers import Dialogue
from .packing import Windows, windows


@dataclass(frozen=True)
class Pard:
    """Guesses by mask tokens.

    Args:
        mask: a token that no text has.
        block: guesses of a pass.
        places: of each window of text, after which masks are put.
    """

    mask: int
    block: int = 12
    places: int = 96


@dataclass(frozen=True)
class Student:
    """A draft, and how it guesses: in steps unless `pard` is given."""

    model: Any
    pard: Pard | None = None


@dataclass(frozen=True)
class Pace:
    """How long to train, in seconds, in which batches, and at what rate for a draft of `size` parameters; it falls with
    the root of the size."""

    seconds: float
    rate: float = 1.5e-3
    size: float = 2.6e6
    warmup: float = 0.03
    rows: int = 16
    window: int = 1024
    seed: int = 0


@dataclass(frozen=True)
class Masked:
    """Windows with masks behind `places`: what a pass reads, int64 (rows, entries), and which entries see which, bool
    (rows, 1, entries, entries). `aims`, int64 (rows, places, block - 1), is the place whose distribution a mask has to
    predict, and `counts`, bool, whether it is one of the same answer's."""

    tokens: torch.Tensor
    positions: torch.Tensor
    sees: torch.Tensor
    aims: torch.Tensor
    counts: torch.Tensor


def masked(batch: Windows, pard: Pard, generator: torch.Generator) -> Masked:
    """Put masks behind places of answers, chosen at random."""
    rows, size = batch.tokens.shape
    device, ahead = batch.tokens.device, pard.block - 1
    answers = torch.zeros_like(batch.weights)
    answers[:, :-1] = batch.weights[:, 1:]  # a guess at a place is of the token after it
    drawn = torch.rand(answers.shape, generator=generator, device=device) + (answers > 0)
    places = drawn.topk(pard.places, dim=1).indices  # those of answers first
    steps = torch.arange(1, pard.block, device=device)
    aims = (places[:, :, None] + steps).clamp_max(size - 1)
    chat = batch.chats.gather(1, places)
    whole = (answers > 0).gather(1, places)[:, :, None] & (answers > 0).gather(1, aims.flatten(1)).view_as(aims)
    between = whole.long().cumprod(-1) > 0  # no gap: the same answer
    counts = between & (batch.chats.gather(1, aims.flatten(1)).view_as(aims) == chat[:, :, None])
    positions = (batch.positions.gather(1, places)[:, :, None] + steps).flatten(1)
    text = batch.mask()[:, 0]
    before = text.gather(1, places[:, :, None].expand(-1, -1, size)).repeat_interleave(ahead, 1)
    number = torch.arange(pard.places, device=device).repeat_interleave(ahead)
    own = (number[:, None] == number[None]).tril()
    sees = torch.zeros(rows, size + own.shape[0], size + own.shape[0], dtype=torch.bool, device=device)
    sees[:, :size, :size], sees[:, size:, :size], sees[:, size:, size:] = text, before, own
    masks = torch.full_like(positions, pard.mask)
    return Masked(
        torch.cat([batch.tokens, masks], 1), torch.cat([batch.positions, positions], 1), sees[:, None], aims, counts
    )


class Distilling:
    """A training of students on dialogues of `target`, all of them modules of transformers on one device."""

    def __init__(self, target: Any, students: Mapping[str, Student], pace: Pace) -> None:
        self._target, self._students, self._pace = target.eval(), dict(students), pace
        self._device = next(target.parameters()).device
        self._generator = torch.Generator(self._device).manual_seed(pace.seed)
        self._optimizers = {
            name: torch.optim.AdamW(each.model.parameters(), betas=(0.9, 0.98), weight_decay=0.01)
            for name, each in students.items()
        }
        self.tokens = 0

    def run(self, dialogues: Sequence[Dialogue]) -> Iterator[dict[str, float]]:
        """Train on these again and again until the time is over; yields the losses of each step, in nats a guess."""
        rng = random.Random(self._pace.seed)  # noqa: S311 - no secret
        source = windows(_again(dialogues, rng), self._pace.rows, self._pace.window, rng)
        began = time.monotonic()
        while (done := (time.monotonic() - began) / self._pace.seconds) < 1:
            yield self._step(next(source).to(str(self._device)), self._pace.rate * self._share(done))

    def _share(self, done: float) -> float:
        """Of the rate: up in a line, down in a cosine."""
        if done < self._pace.warmup:
            return max(0.02, done / self._pace.warmup)
        return 0.02 + 0.49 * (1 + math.cos(math.pi * (done - self._pace.warmup) / (1 - self._pace.warmup)))

    def _step(self, batch: Windows, rate: float) -> dict[str, float]:
        losses = self.losses(batch)
        for optimizer in self._optimizers.values():
            optimizer.zero_grad(set_to_none=True)
        torch.stack(list(losses.values())).sum().backward()  # no weight is of two students
        for name, optimizer in self._optimizers.items():
            size = sum(each.numel() for each in self._students[name].model.parameters())
            for group in optimizer.param_groups:
                group["lr"] = rate * (self._pace.size / size) ** 0.5
            torch.nn.utils.clip_grad_norm_(self._students[name].model.parameters(), 1.0)
            optimizer.step()
        self.tokens += batch.tokens.numel()
        return {name: float(loss.detach()) for name, loss in losses.items()}

    def losses(self, batch: Windows) -> dict[str, torch.Tensor]:
        """Of each student, in nats a guess."""
        counted = batch.weights[:, 1:] > 0
        with torch.no_grad(), self._cast():
            logits = self._target(
                input_ids=batch.tokens, attention_mask=batch.mask(), position_ids=batch.positions, use_cache=False
            ).logits.float()
        taught = logits.log_softmax(-1)
        return {name: self._loss(each, batch, taught, counted) for name, each in self._students.items()}

    def _loss(self, student: Student, batch: Windows, taught: torch.Tensor, counted: torch.Tensor) -> torch.Tensor:
        size = batch.tokens.shape[1]
        if student.pard is None:
            rows = self._rows(student, batch.tokens, batch.mask(), batch.positions)
            return _divergence(rows[:, :-1][counted], taught[:, :-1][counted])
        made = masked(batch, student.pard, self._generator)
        rows = self._rows(student, made.tokens, made.sees, made.positions)
        aims = made.aims.flatten(1)
        wanted = taught.gather(1, aims[:, :, None].expand(-1, -1, taught.shape[-1]))
        deep = made.counts.flatten(1)
        first = _divergence(rows[:, : size - 1][counted], taught[:, :-1][counted])
        return first / student.pard.block + _divergence(rows[:, size:][deep], wanted[deep])

    def _rows(self, student: Student, tokens: torch.Tensor, sees: torch.Tensor, positions: torch.Tensor) -> Any:
        with self._cast():
            return student.model(
                input_ids=tokens, attention_mask=sees, position_ids=positions, use_cache=False
            ).logits.float()

    def _cast(self) -> Any:
        return torch.autocast(self._device.type, torch.bfloat16, enabled=self._device.type == "cuda")


def _divergence(logits: torch.Tensor, taught: torch.Tensor) -> torch.Tensor:
    """The mean KL divergence from the distributions whose logarithms are `taught`."""
    return torch.nn.functional.kl_div(logits.log_softmax(-1), taught, reduction="batchmean", log_target=True)


def _again(dialogues: Sequence[Dialogue], rng: random.Random) -> Iterator[tuple[list[int], list[float]]]:
    while True:
        for each in rng.sample(dialogues, len(dialogues)):
            yield each.tokens, each.weights
