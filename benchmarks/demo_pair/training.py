"""The training: AdamW and a cosine over a given number of minutes, with its state on disk every few of them.

A draft model may learn beside the target, from the target's distribution in the same step (online distillation, as in
Anil et al. 2018, arXiv 1804.03235): the target's pass is paid once, and at the end of the cosine it hardly changes.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from .batches import Batches
from .packing import Windows
from .precision import multiplies_bfloat16

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
    decay: float = 0.0
    prompt_weight: float = 0.0
    device: str = "cpu"
    save_minutes: float = 10.0
    seed: int = 0
    workers: int = 0
    draft_rate: float = 3e-3
    begun: float = 0.0  #: how far the curriculum was when this training began, 0 to 1


class Training:
    """A model in training, and its draft models, if there are any, with the minutes used and the tokens seen;
    `state.pt` in its folder holds all of it."""

    def __init__(
        self, model: Any, kit: Path, folder: Path, settings: Settings, drafts: Mapping[str, Any] | None = None
    ) -> None:
        self.models = {name: each.to(settings.device) for name, each in {"target": model, **(drafts or {})}.items()}
        self._rates = dict.fromkeys(self.models, settings.draft_rate) | {"target": settings.rate}
        self.settings, self.folder = settings, folder
        self.seconds, self.tokens, self.step = 0.0, 0, 0
        self._kit = kit
        self._shown: Any = torch.zeros(1)
        self._optimizers = {name: self._optimizer(each) for name, each in self.models.items()}
        state = folder / "state.pt"
        if state.exists():
            self._restore(torch.load(state, map_location=settings.device, weights_only=True))

    @property
    def progress(self) -> float:
        """0 to 1."""
        return min(1.0, self.seconds / (60 * self.settings.minutes))

    def run(self) -> Iterator[dict[str, float]]:
        """Train to the end of the time; yields figures about every step. The last state is saved."""
        batches, saved = self._batches(), self.seconds
        while self.progress < 1.0:
            began = time.monotonic()
            losses = self._train(next(batches))
            self.seconds += min(time.monotonic() - began, _LONGEST_STEP)
            self._show()
            yield {"step": self.step, "tokens": self.tokens, "minutes": self.seconds / 60, **losses}
            if self.seconds - saved > 60 * self.settings.save_minutes:
                self.save()
                saved = self.seconds
        self.save()

    def _batches(self) -> Iterator[Windows]:
        own = self.settings
        source = Batches(self._kit, f"{own.seed} {self.step}", own.rows, own.window, own.prompt_weight)
        self._shown = source.progress
        self._show()
        return iter(source.loaded(own.workers))

    def _show(self) -> None:
        """Tell the makers of batches how far the curriculum is."""
        self._shown[0] = self.settings.begun + (1 - self.settings.begun) * self.progress

    def _optimizer(self, model: Any) -> torch.optim.Optimizer:
        fused = self.settings.device.startswith("cuda")
        return torch.optim.AdamW(model.parameters(), betas=(0.9, 0.98), weight_decay=self.settings.decay, fused=fused)

    def _train(self, batch: Windows) -> dict[str, float]:
        """A step; returns the losses, in nats a token."""
        losses = self._losses(batch.to(self.settings.device))
        for name, optimizer in self._optimizers.items():
            for group in optimizer.param_groups:
                group["lr"] = self._rates[name] * self._share()
            optimizer.zero_grad(set_to_none=True)
        torch.stack(list(losses.values())).sum().backward()  # no weight is of both models
        for name, optimizer in self._optimizers.items():
            torch.nn.utils.clip_grad_norm_(self.models[name].parameters(), 1.0)
            optimizer.step()
        self.step += 1
        self.tokens += batch.tokens.numel()
        return {name: float(loss.detach()) for name, loss in losses.items()}

    def _losses(self, batch: Windows) -> dict[str, torch.Tensor]:
        """The target's cross entropy, and the KL divergence of each draft from the target."""
        counted = batch.weights[:, 1:] > 0
        weights = batch.weights[:, 1:][counted]
        weights = weights / weights.sum()
        target = self._logits("target", batch, counted)
        wanted = batch.tokens[:, 1:][counted]
        losses = {"target": (torch.nn.functional.cross_entropy(target, wanted, reduction="none") * weights).sum()}
        p = target.detach().log_softmax(-1)
        for name in self.models.keys() - {"target"}:
            q = self._logits(name, batch, counted).log_softmax(-1)
            apart = torch.nn.functional.kl_div(q, p, reduction="none", log_target=True).sum(-1)
            losses[name] = (apart * weights).sum()
        return losses

    def _logits(self, name: str, batch: Windows, counted: torch.Tensor) -> torch.Tensor:
        """float32 (counted tokens, vocabulary): the logits from which the counted tokens are predicted."""
        model, kind = self.models[name], self.settings.device.partition(":")[0]
        with torch.autocast(kind, torch.bfloat16, enabled=multiplies_bfloat16(kind)):
            hidden = model.model(
                input_ids=batch.tokens, attention_mask=batch.mask(), position_ids=batch.positions, use_cache=False
            )[0][:, :-1]
            logits: torch.Tensor = model.lm_head(hidden[counted]).float()
        return logits

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
            "models": {name: each.state_dict() for name, each in self.models.items()},
            "optimizers": {name: each.state_dict() for name, each in self._optimizers.items()},
            "at": {"seconds": self.seconds, "tokens": self.tokens, "step": self.step},
        }
        unfinished = self.folder / "state.unfinished"
        torch.save(state, unfinished)
        unfinished.replace(self.folder / "state.pt")
        (self.folder / "settings.json").write_text(json.dumps(asdict(self.settings), indent=2))

    def _restore(self, state: dict[str, Any]) -> None:
        for name, model in self.models.items():
            model.load_state_dict(state["models"][name])
            self._optimizers[name].load_state_dict(state["optimizers"][name])
        self.seconds, self.tokens, self.step = (state["at"][name] for name in ("seconds", "tokens", "step"))
