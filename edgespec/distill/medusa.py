"""Medusa heads: Medusa-1 (Cai et al. 2024, arXiv 2401.10774), whose target is left as it is.

Head i guesses the token i + 2 places after a token, from the target's final state of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ..types import Floats
from .example import Example
from .head_tokens import Numbered
from .learner import begun, rows_of
from .loss import distillation_loss
from .simulation import Right

HEADS = 4  #: guesses of a pass
_BEGINNING = 0.25  # share of the target's output matrix that the heads begin with
DECAY = 0.8  #: of the loss, by head


class Medusa:
    """Heads that begin as a flatter version of the target's own output.

    Args:
        output: the matrix that the target makes logits with, float32 [vocabulary, width].
        tokens: those that the heads have, ascending, int64 [rows].
    """

    def __init__(self, output: Floats, tokens: npt.NDArray[np.int64]) -> None:
        import torch  # noqa: PLC0415

        self._torch, self._tokens, self._device = torch, tokens, "cpu"
        self._numbered, width = Numbered(tokens, len(output)), output.shape[1]
        self.trained = torch.nn.ModuleList()
        for _ in range(HEADS):
            block, matrix = torch.nn.Linear(width, width), torch.nn.Linear(width, len(tokens), bias=False)
            torch.nn.init.zeros_(block.weight)
            torch.nn.init.zeros_(block.bias)
            matrix.weight.data = torch.from_numpy(_BEGINNING * output[tokens])
            inner = torch.nn.ModuleDict({"linear": block})
            self.trained.append(torch.nn.ModuleDict({"0": inner, "1": matrix}))

    def to(self, device: str) -> None:
        self._device = device
        self.trained.to(device)

    def knows(self, example: Example) -> bool:
        return example.rows is not None

    def loss(self, batch: Sequence[Example], cross_entropy: float) -> Any:
        likely, logprobs, said = (
            np.concatenate(each)
            for each in zip(*((one.likely, one.logprobs, one.answer) for one in batch), strict=True)
        )
        likely, said = self._numbered.of(likely), self._numbered.of(said)
        total = self._torch.zeros((), device=self._device)
        for depth in range(HEADS):
            places, states = self._places(batch, depth)
            if len(places):
                logits = self.logits(depth, states)
                parts = [self._tensor(each[places]) for each in (likely, logprobs, said)]
                total = total + DECAY**depth * distillation_loss(
                    logits, parts[0], parts[1].float(), parts[2], cross_entropy
                )
        return total

    def right(self, batch: Sequence[Example]) -> Iterator[Right]:
        said = np.concatenate([example.answer for example in batch])
        found = np.zeros((len(said), HEADS), np.bool_)
        for depth in range(HEADS):
            places, states = self._places(batch, depth)
            if len(places):
                guessed = self._tokens[self.logits(depth, states).argmax(-1).cpu().numpy()]
                found[places - depth, depth] = guessed == said[places]
        yield from np.split(found, np.cumsum([len(example.answer) for example in batch[:-1]]))

    def tensors(self) -> dict[str, npt.NDArray[Any]]:
        """The heads as the tensors of a checkpoint; `d2t` has the target's token of each row."""
        found = {name: each.detach().half().cpu().numpy() for name, each in self.trained.state_dict().items()}
        return {"d2t": self._tokens, **found}

    def config(self) -> dict[str, Any]:
        """The config.json."""
        return {"medusa_num_heads": HEADS, "medusa_num_layers": 1}

    def _places(self, batch: Sequence[Example], depth: int) -> tuple[npt.NDArray[np.int64], Any]:
        """The places in all answers together that the head at `depth` guesses, and the states from which it does,
        float32 [places, width]: the next token after a state is known."""
        places, states, base = [], [], 0
        for each in batch:
            begins = begun(each, depth)
            places.append(base + begins + depth)
            states.append(rows_of(each)[each.start - 2 + begins])
            base += len(each.answer)
        return np.concatenate(places), self._tensor(np.concatenate(states)).float()

    def logits(self, depth: int, x: Any) -> Any:
        """Of the head at `depth`, from the target's states, float32 [..., tokens]."""
        head = self.trained[depth]
        return head["1"](x + self._torch.nn.functional.silu(head["0"]["linear"](x)))

    def _tensor(self, values: npt.NDArray[Any]) -> Any:
        return self._torch.from_numpy(values).to(self._device)
