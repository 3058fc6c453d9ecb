"""What was recorded of a task: its answers, and what a draft model guessed at every token of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

DEPTH = 15  #: tokens that the draft model went on by itself
FOLDER = Path(__file__).parent / "traces"


@dataclass(frozen=True)
class Item:
    """One prompt and its answer.

    `guesses` uint16 [answer, DEPTH, 2]: the two likeliest tokens at each depth after each token of the answer, the
    likeliest being gone on from. `probs` float32, the same shape: their probabilities.
    """

    prompt: tuple[int, ...]
    answer: tuple[int, ...]
    guesses: npt.NDArray[np.uint16]
    probs: npt.NDArray[np.float32]

    def first(self, n: int) -> Item:
        """The first `n` tokens of the answer."""
        return replace(self, answer=self.answer[:n], guesses=self.guesses[:n], probs=self.probs[:n])


@dataclass(frozen=True, eq=False)
class Trace:
    """The answers of one task, in order."""

    name: str
    items: list[Item]

    @property
    def tokens(self) -> int:
        return sum(len(item.answer) for item in self.items)

    def save(self, folder: Path) -> Path:
        """Write `folder`/NAME.npz; probabilities are kept in steps of 1/1000."""
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{self.name}.npz"
        items = self.items
        np.savez_compressed(
            path,
            prompt=np.array([token for item in items for token in item.prompt], dtype=np.uint16),
            answer=np.array([token for item in items for token in item.answer], dtype=np.uint16),
            lengths=np.array([(len(item.prompt), len(item.answer)) for item in items], dtype=np.uint16),
            guesses=np.concatenate([item.guesses for item in items]),
            probs=np.round(np.concatenate([item.probs for item in items]) * 1000).astype(np.uint16),
        )
        return path

    @classmethod
    def load(cls, name: str, folder: Path = FOLDER) -> Trace:
        """Read `folder`/NAME.npz."""
        with np.load(folder / f"{name}.npz") as kept:
            return cls(name, list(_items({key: kept[key] for key in kept.files})))


def _items(kept: dict[str, npt.NDArray[np.uint16]]) -> Iterator[Item]:
    prompt = answer = 0
    for prompts, answers in kept["lengths"].tolist():
        said = slice(answer, answer + answers)
        yield Item(
            tuple(kept["prompt"][prompt : prompt + prompts].tolist()),
            tuple(kept["answer"][said].tolist()),
            kept["guesses"][said],
            kept["probs"][said].astype(np.float32) / np.float32(1000),
        )
        prompt, answer = prompt + prompts, answer + answers
