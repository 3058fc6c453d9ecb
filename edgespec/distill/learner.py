"""What the trainer trains: a draft model, or a head of the target."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from ..tools.draft_value import DEPTH
from .example import Example
from .loss import distillation_loss
from .simulation import Right, chained


class Learner(Protocol):
    """Guesses what the target says, and learns from its answers."""

    @property
    def trained(self) -> Any:
        """The module of torch whose parameters are trained; they are all that a state keeps."""
        ...

    def to(self, device: str) -> None:
        """Move all weights to a device of torch."""
        ...

    def knows(self, example: Example) -> bool:
        """Whether it can read the tokens of an example."""
        ...

    def loss(self, batch: Sequence[Example], cross_entropy: float) -> Any:
        """The loss over the places of all answers, a scalar tensor.

        Args:
            cross_entropy: the weight of the cross-entropy beside the divergence.
        """
        ...

    def right(self, batch: Sequence[Example]) -> Iterator[Right]:
        """Which of its guesses in each answer are right, without gradients."""
        ...


class Draft:
    """A draft model.

    Args:
        model: a causal language model of transformers, float32.
        adapter: the module of weights that are trained in place of all those of `model`, which adds them itself.
    """

    def __init__(self, model: Any, adapter: Any = None) -> None:
        self.trained = model if adapter is None else adapter
        self.model, self._device = model, "cpu"

    def to(self, device: str) -> None:
        self._device = device
        self.model.to(device)
        self.trained.to(device)

    def knows(self, example: Example) -> bool:
        return int(example.tokens.max()) < int(self.model.get_input_embeddings().weight.shape[0])

    def loss(self, batch: Sequence[Example], cross_entropy: float) -> Any:
        import torch  # noqa: PLC0415

        self.model.train()
        logits = self._logits(batch)
        likely, logprobs, said = (
            torch.from_numpy(np.concatenate(each)).to(self._device)
            for each in zip(*((one.likely, one.logprobs, one.answer) for one in batch), strict=True)
        )
        return distillation_loss(logits, likely.long(), logprobs.float(), said.long(), cross_entropy)

    def right(self, batch: Sequence[Example]) -> Iterator[Right]:
        self.model.eval()
        guessed = self._logits(batch).argmax(-1).cpu().numpy()
        ends = np.cumsum([len(example.answer) for example in batch])
        for example, own in zip(batch, np.split(guessed, ends[:-1]), strict=True):
            yield chained(own == example.answer, DEPTH)

    def _logits(self, batch: Sequence[Example]) -> Any:
        """The logits at the places of all answers of a batch, float32 [places, vocabulary]."""
        import torch  # noqa: PLC0415

        tokens = torch.from_numpy(padded([example.tokens for example in batch])).to(self._device)
        rows = np.repeat(np.arange(len(batch)), [len(example.answer) for example in batch])
        places = np.concatenate([np.arange(each.start - 1, len(each.tokens) - 1) for each in batch])
        return self.model(input_ids=tokens, use_cache=False).logits[rows, places].float()


def padded(texts: Sequence[npt.NDArray[np.integer[Any]]], more: int = 0) -> npt.NDArray[np.int64]:
    """The texts as one array, int64 [texts, longest + more]. Shorter ones are filled up with zeros at their end, which
    no token before it attends to."""
    tokens = np.zeros((len(texts), more + max(map(len, texts))), np.int64)
    for row, text in zip(tokens, texts, strict=True):
        row[: len(text)] = text
    return tokens


def begun(example: Example, depth: int) -> npt.NDArray[np.int64]:
    """The places of an answer at which rounds begin whose guess at `depth`, from 0, is still in the answer.

    A head guesses from the target's row of the token before the last one, so two tokens must come before a round.
    """
    first = max(0, 2 - example.start)
    return np.arange(first, max(first, len(example.answer) - depth))


def rows_of(example: Example) -> npt.NDArray[np.float16]:
    """The target's rows of an example. ValueError if it has none, which heads need."""
    if example.rows is None:
        raise ValueError("an example without the target's rows, which heads read")
    return example.rows
