"""Heads of the target that learn as drafts do: EAGLE-3 and Medusa, for all tokens of its vocabulary.

At a place of a text a head has the target's rows of all tokens but the last one, and guesses what comes after that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from edgespec.distill import eagle3, head_checkpoint, medusa

from .masks import Masked, Pard
from .packing import Windows
from .students import DEPTH, Student, Taught, divergence


class Eagle3Head:
    """An EAGLE-3 head, trained on chains of its own rows."""

    def __init__(self, target: Any) -> None:
        self._layers = eagle3.layers(target.config.num_hidden_layers)
        embedding = target.get_input_embeddings().weight.detach().float().cpu().numpy()
        self._head = eagle3.Eagle3(embedding, np.arange(len(embedding)), self._layers)
        self._head.to(str(target.device))
        self.trained, self.pard = self._head.trained, Pard(0, DEPTH)

    def loss(self, taught: Taught, generator: torch.Generator) -> torch.Tensor:  # noqa: ARG002 - nothing is drawn
        total = torch.zeros((), device=taught.logprobs.device)
        for depth, state in enumerate(self._chains(taught, eagle3.AHEAD)):
            here, there = _places(taught.batch, depth)
            total = total + eagle3.DECAY**depth * divergence(
                self._head.logits(state[here]).float(), taught.logprobs[there]
            )
        return total

    def guesses(self, taught: Taught, made: Masked) -> torch.Tensor:
        begins, depths = made.before[..., 0] - 1, list[torch.Tensor]()
        for state in self._chains(taught, DEPTH):
            depths.append(self._head.logits(state).argmax(-1).gather(1, begins))
        return torch.stack(depths, -1)

    def save(self, kit: Path, output: Path) -> None:  # noqa: ARG002 - a head has no tokenizer
        head_checkpoint.write(self._head, output)

    def _chains(self, taught: Taught, ahead: int) -> Iterator[Any]:
        """The head's own rows by depth, at the places of all tokens but the last."""
        batch = taught.batch
        tokens = torch.nn.functional.pad(batch.tokens, (0, ahead))
        rows = torch.cat([taught.states[layer][:, :-1] for layer in self._layers], -1).float()
        begins = torch.arange(rows.shape[1], device=rows.device).expand(len(rows), -1)
        return self._head.chains(tokens, rows, begins, batch.mask()[:, :, :-1, :-1], ahead)


class MedusaHeads:
    """Medusa heads."""

    def __init__(self, target: Any) -> None:
        output = target.get_output_embeddings().weight.detach().float().cpu().numpy()
        self._heads = medusa.Medusa(output, np.arange(len(output)))
        self._heads.to(str(target.device))
        self.trained, self.pard = self._heads.trained, Pard(0, DEPTH)

    def loss(self, taught: Taught, generator: torch.Generator) -> torch.Tensor:  # noqa: ARG002 - nothing is drawn
        total = torch.zeros((), device=taught.logprobs.device)
        for depth in range(medusa.HEADS):
            here, there = _places(taught.batch, depth)
            logits = self._heads.logits(depth, taught.states[-1][:, :-1][here].float())
            total = total + medusa.DECAY**depth * divergence(logits.float(), taught.logprobs[there])
        return total

    def guesses(self, taught: Taught, made: Masked) -> torch.Tensor:
        begins = made.before[..., 0] - 1
        rows = torch.arange(len(begins), device=begins.device)[:, None]
        states = taught.states[-1][rows, begins].float()
        return torch.stack([self._heads.logits(depth, states).argmax(-1) for depth in range(medusa.HEADS)], -1)

    def save(self, kit: Path, output: Path) -> None:  # noqa: ARG002 - heads have no tokenizer
        head_checkpoint.write(self._heads, output, "medusa_lm_head.safetensors")


def _places(batch: Windows, depth: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Which places guess a token of an answer at `depth`, bool (rows, window - 1), and which are those of the
    distributions that they guess, bool (rows, window), as many and in the same order.

    A chain at place i begins after the token i + 1 and guesses the token i + 2 + depth; all of it is in one answer.
    """
    answers, size = batch.weights > 0, batch.weights.shape[1]
    count = max(0, size - 2 - depth)
    whole = torch.stack([answers[:, 2 + step : 2 + step + count] for step in range(depth + 1)]).all(0)
    whole = whole & (batch.chats[:, :count] == batch.chats[:, 2 + depth :])
    here = torch.nn.functional.pad(whole, (0, size - 1 - count))
    there = torch.nn.functional.pad(whole, (1 + depth, size - 1 - depth - count))
    return here, there


#: By the name of their drafter; made for a target, a module of transformers.
HEADS: Mapping[str, Callable[[Any], Student]] = {"eagle3": Eagle3Head, "medusa": MedusaHeads}
