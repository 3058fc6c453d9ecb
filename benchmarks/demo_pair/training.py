"""The training: AdamW and a cosine over a given number of minutes, with its state on disk every few of them."""

from __future__ import annotations

import json
import math
import random
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer

from .curriculum import chats
from .kit import kit_texts, records
from .packing import Windows, encode, windows

_LONGEST_STEP = 30.0  # seconds: more means that the process was stopped, which is no training time
_FLOOR = 0.05  # of the rate, at the end


@dataclass(frozen=True)
class Settings:
    """How to train. `minutes` is the whole of it, over all processes that went on with it."""

    minutes: float
    rows: int = 4
    window: int = 256
    rate: float = 6e-4
    warmup: float = 0.03
    decay: float = 0.01
    prompt_weight: float = 0.0
    device: str = "cpu"
    save_minutes: float = 10.0
    seed: int = 0


class Training:
    """A model in training, with the minutes used and the tokens seen; `state.pt` in its folder holds all of it."""

    def __init__(self, model: Any, kit: Path, folder: Path, settings: Settings) -> None:
        self.model, self.settings, self.folder = model.to(settings.device), settings, folder
        self.seconds, self.tokens, self.step = 0.0, 0, 0
        self._kit = kit
        self._optimizer = torch.optim.AdamW(
            model.parameters(), lr=settings.rate, betas=(0.9, 0.98), weight_decay=settings.decay
        )
        state = folder / "state.pt"
        if state.exists():
            self._restore(torch.load(state, map_location=settings.device, weights_only=True))

    @property
    def progress(self) -> float:
        """0 to 1."""
        return min(1.0, self.seconds / (60 * self.settings.minutes))

    def run(self) -> Iterator[dict[str, float]]:
        """Train to the end of the time; yields figures about every step. The last state is saved."""
        batches = self._batches()
        saved = self.seconds
        while self.progress < 1.0:
            began = time.monotonic()
            loss = self._train(next(batches))
            self.seconds += min(time.monotonic() - began, _LONGEST_STEP)
            yield {"step": self.step, "tokens": self.tokens, "minutes": self.seconds / 60, "loss": loss}
            if self.seconds - saved > 60 * self.settings.save_minutes:
                self.save()
                saved = self.seconds
        self.save()

    def _batches(self) -> Iterator[Windows]:
        rng = random.Random(f"{self.settings.seed} {self.step}")  # noqa: S311 - no secret
        tokenizer = Tokenizer.from_file(str(self._kit / "tokenizer.json"))
        source = kit_texts(self._kit, "train")
        drawn = chats(source, records(self._kit, "dialogues", "train"), rng, lambda: self.progress)
        encoded = (encode(chat, tokenizer, self.settings.prompt_weight) for chat in drawn)
        return windows(encoded, self.settings.rows, self.settings.window, rng)

    def _train(self, batch: Windows) -> float:
        for group in self._optimizer.param_groups:
            group["lr"] = self.settings.rate * self._share()
        loss = self._loss(batch.to(self.settings.device))
        self._optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self._optimizer.step()
        self.step += 1
        self.tokens += batch.tokens.numel()
        return float(loss.detach())

    def _loss(self, batch: Windows) -> torch.Tensor:
        kind = self.settings.device.partition(":")[0]
        with torch.autocast(kind, torch.bfloat16, enabled=kind == "cuda"):
            hidden = self.model.model(
                input_ids=batch.tokens, attention_mask=batch.mask(), position_ids=batch.positions, use_cache=False
            )[0][:, :-1]
            counted = batch.weights[:, 1:] > 0
            logits = self.model.lm_head(hidden[counted])
        losses = torch.nn.functional.cross_entropy(logits.float(), batch.tokens[:, 1:][counted], reduction="none")
        weights = batch.weights[:, 1:][counted]
        return (losses * weights).sum() / weights.sum()

    def _share(self) -> float:
        """Of the rate: up in a line, down in a cosine."""
        if self.progress < self.settings.warmup:
            return max(0.01, self.progress / self.settings.warmup)
        done = (self.progress - self.settings.warmup) / (1 - self.settings.warmup)
        return _FLOOR + (1 - _FLOOR) * 0.5 * (1 + math.cos(math.pi * done))

    def save(self) -> None:
        """Write the state and a checkpoint that `edgespec convert` reads, each whole or not at all."""
        self.folder.mkdir(parents=True, exist_ok=True)
        state = {
            "model": self.model.state_dict(),
            "optimizer": self._optimizer.state_dict(),
            "at": {"seconds": self.seconds, "tokens": self.tokens, "step": self.step},
        }
        unfinished = self.folder / "state.unfinished"
        torch.save(state, unfinished)
        unfinished.replace(self.folder / "state.pt")
        (self.folder / "settings.json").write_text(json.dumps(asdict(self.settings), indent=2))

    def _restore(self, state: dict[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        self._optimizer.load_state_dict(state["optimizer"])
        self.seconds, self.tokens, self.step = (state["at"][name] for name in ("seconds", "tokens", "step"))
