"""Batches without end, made by several processes, for making them takes longer than a step of a GPU."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from .curriculum import chats
from .kit import kit_texts, records
from .packing import Windows, encode, windows


class Batches(IterableDataset[Windows]):  # type: ignore[misc, unused-ignore]
    """Batches of training text, at the stage of the curriculum that `progress` is in.

    Args:
        kit: the folder of the kit.
        seed: of what is drawn; each process adds its number.
        rows: windows of a batch.
        window: tokens of a window.
        prompt_weight: of the losses of what the user says.
    """

    def __init__(self, kit: Path, seed: str, rows: int, window: int, prompt_weight: float) -> None:
        self._kit, self._seed = kit, seed
        self._rows, self._window, self._prompt_weight = rows, window, prompt_weight
        #: 0 to 1, in memory that the processes share.
        self.progress: Any = torch.zeros(1).share_memory_()

    def __iter__(self) -> Iterator[Windows]:
        worker = get_worker_info()
        rng = random.Random(f"{self._seed} {worker.id if worker else 0}")  # noqa: S311 - no secret
        tokenizer = Tokenizer.from_file(str(self._kit / "tokenizer.json"))
        source, dialogues = kit_texts(self._kit, "train"), records(self._kit, "dialogues", "train")
        drawn = chats(source, dialogues, rng, lambda: float(self.progress[0]))
        encoded = (encode(chat, tokenizer, self._prompt_weight) for chat in drawn)
        return windows(encoded, self._rows, self._window, rng)

    def loaded(self, workers: int) -> DataLoader[Windows]:
        """The batches by `workers` processes; 0 makes them in this one."""
        return DataLoader(self, batch_size=None, num_workers=workers, prefetch_factor=4 if workers else None)
