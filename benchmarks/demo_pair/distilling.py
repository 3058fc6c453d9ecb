"""Drafts trained on the target's own answers, several beside each other: the target's pass is paid once."""

from __future__ import annotations

import math
import random
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from .answers import Dialogue
from .packing import Windows, windows
from .precision import multiplies_bfloat16
from .students import Student, Taught


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


class Distilling:
    """A training of students on dialogues of `target`, all of them modules of transformers on one device."""

    def __init__(self, target: Any, students: Mapping[str, Student], pace: Pace) -> None:
        self._target, self._students, self._pace = target.eval(), dict(students), pace
        self._device = next(target.parameters()).device
        self._generator = torch.Generator(self._device).manual_seed(pace.seed)
        self._optimizers = {
            name: torch.optim.AdamW(each.trained.parameters(), betas=(0.9, 0.98), weight_decay=0.01)
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
            size = sum(each.numel() for each in self._students[name].trained.parameters())
            for group in optimizer.param_groups:
                group["lr"] = rate * (self._pace.size / size) ** 0.5
            torch.nn.utils.clip_grad_norm_(self._students[name].trained.parameters(), 1.0)
            optimizer.step()
        self.tokens += batch.tokens.numel()
        return {name: float(loss.detach()) for name, loss in losses.items()}

    def losses(self, batch: Windows) -> dict[str, torch.Tensor]:
        """Of each student, in nats a guess."""
        kind = self._device.type
        with warnings.catch_warnings(), torch.autocast(kind, torch.bfloat16, enabled=multiplies_bfloat16(kind)):
            warnings.filterwarnings(
                "ignore", "Mismatch dtype between input and weight"
            )  # norms of heads: slower, right
            with torch.no_grad():
                taught = taught_by(self._target, batch)
            return {name: each.loss(taught, self._generator) for name, each in self._students.items()}


def taught_by(target: Any, batch: Windows) -> Taught:
    """What `target`, a model of transformers, makes of `batch`."""
    found = target(
        input_ids=batch.tokens,
        attention_mask=batch.mask(),
        position_ids=batch.positions,
        use_cache=False,
        output_hidden_states=True,
    )
    return Taught(batch, found.logits.float().log_softmax(-1), found.hidden_states)


def _again(dialogues: Sequence[Dialogue], rng: random.Random) -> Iterator[tuple[list[int], list[float]]]:
    while True:
        for each in rng.sample(dialogues, len(dialogues)):
            yield each.tokens, each.weights
