"""Drafts that learn from the target: their losses, and what they guess.

A draft guesses step by step, or in one pass by mask tokens (PARD, arXiv 2504.18583). The loss of every guess is its KL
divergence from the target's distribution at that place of an answer (DistillSpec, arXiv 2310.08461).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch

from .masks import Masked, Pard, masked
from .packing import Windows
from .saving import save_checkpoint

DEPTH = 8  #: guesses of a draft that are counted


@dataclass(frozen=True)
class Taught:
    """Texts, and what the target makes of them.

    Args:
        batch: the texts.
        logprobs: logarithms of the target's probabilities of the token after each, float32 (rows, window, vocabulary).
        states: the inputs of each layer of the target and, last, what its logits are computed from, each (rows, window,
            width).
    """

    batch: Windows
    logprobs: torch.Tensor
    states: Sequence[torch.Tensor]

    @property
    def counted(self) -> torch.Tensor:
        """Which guesses are of a token of an answer, by the token before it, bool (rows, window - 1)."""
        return self.batch.weights[:, 1:] > 0


class Student(Protocol):
    """A draft in training."""

    #: The module of torch whose parameters are trained.
    trained: Any
    #: The masks that it reads, or others as many: they choose the places at which its guesses are counted.
    pard: Pard

    def loss(self, taught: Taught, generator: torch.Generator) -> torch.Tensor:
        """In nats a guess, a scalar."""
        ...

    def guesses(self, taught: Taught, made: Masked) -> torch.Tensor:
        """The likeliest tokens by depth after the last token before each of the places of `made`, int64 (rows, places,
        depths)."""
        ...

    def save(self, kit: Path, output: Path) -> None:
        """Write the folder `output`, a checkpoint that `edgespec convert` reads."""
        ...


class Steps:
    """A model that guesses step by step, of transformers."""

    def __init__(self, model: Any) -> None:
        self.trained, self.pard = model, Pard(0, DEPTH)

    def loss(self, taught: Taught, generator: torch.Generator) -> torch.Tensor:  # noqa: ARG002 - nothing is drawn
        rows = logits_of(self.trained, taught.batch)
        return divergence(rows[:, :-1][taught.counted], taught.logprobs[:, :-1][taught.counted])

    def guesses(self, taught: Taught, made: Masked) -> torch.Tensor:
        chosen = logits_of(self.trained, taught.batch).argmax(-1)
        return chosen.gather(1, made.before.flatten(1)).view_as(made.before)

    def save(self, kit: Path, output: Path) -> None:
        save_checkpoint(self.trained, kit, output)


class Blocks:
    """The same, by mask tokens in one pass."""

    def __init__(self, model: Any, pard: Pard) -> None:
        self.trained, self.pard = model, pard

    def loss(self, taught: Taught, generator: torch.Generator) -> torch.Tensor:
        made = masked(taught.batch, self.pard, generator)
        rows, size = self._rows(made), taught.batch.tokens.shape[1]
        first = divergence(rows[:, : size - 1][taught.counted], taught.logprobs[:, :-1][taught.counted])
        aims, deep = made.aims.flatten(1), made.counts.flatten(1)
        wanted = taught.logprobs.gather(1, aims[:, :, None].expand(-1, -1, taught.logprobs.shape[-1]))
        return first / self.pard.block + divergence(rows[:, size:][deep], wanted[deep])

    def guesses(self, taught: Taught, made: Masked) -> torch.Tensor:
        chosen, size = self._rows(made).argmax(-1), taught.batch.tokens.shape[1]
        behind = chosen[:, size:].view(made.aims.shape)
        return torch.cat([chosen.gather(1, made.before[..., 0])[..., None], behind], -1)

    def save(self, kit: Path, output: Path) -> None:
        self.trained.config.pard_token, self.trained.config.edgespec_parallel = self.pard.mask, self.pard.block
        save_checkpoint(self.trained, kit, output)

    def _rows(self, made: Masked) -> Any:
        found = self.trained(
            input_ids=made.tokens, attention_mask=made.sees, position_ids=made.positions, use_cache=False
        )
        return found.logits.float()


def logits_of(model: Any, batch: Windows) -> Any:
    """Of a model of transformers, float32 (rows, window, vocabulary)."""
    found = model(input_ids=batch.tokens, attention_mask=batch.mask(), position_ids=batch.positions, use_cache=False)
    return found.logits.float()


def divergence(logits: torch.Tensor, taught: torch.Tensor) -> torch.Tensor:
    """The mean KL divergence from the distributions whose logarithms are `taught`."""
    return torch.nn.functional.kl_div(logits.log_softmax(-1), taught, reduction="batchmean", log_target=True)
