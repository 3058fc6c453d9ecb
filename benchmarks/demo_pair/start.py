"""From the command's options to a training, and from its end to a checkpoint."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import torch
from tokenizers import Tokenizer

from .circuit import Alias
from .copying import exactness
from .kit import kit_texts
from .layout import Layout
from .models import DRAFTS, NEW_GAIN, Shape, config_of, model_of, new_draft, new_weights, read, with_circuit
from .protection import protect
from .saving import save_checkpoint
from .training import Settings, Training

_SEED = 0


@dataclass(frozen=True)
class Wanted:
    """What the command was asked for."""

    kit: Path
    output: Path
    device: str
    minutes: float
    grow: Path | None = None
    threads: int = 0
    refine: Path | None = None
    drafts: tuple[str, ...] = ()


def opened(wanted: Wanted) -> Training:
    """The training of a new, grown or refined model, or the unfinished one of that folder."""
    if wanted.threads:
        torch.set_num_threads(wanted.threads)
    if wanted.refine is not None:
        target = model_of(*read(wanted.refine))
        protect(target, Layout.of(target.config.hidden_size))
        drafts = dict(draft_of(each, wanted.kit) for each in wanted.drafts)
        if len({"target", *drafts}) <= len(wanted.drafts):
            raise click.UsageError("two of --draft have one name, or one is called target; rename a file")
        return Training(target, wanted.kit, wanted.output, _settings(wanted), drafts)
    draft = new_draft(_tokenizer(wanted.kit).get_vocab_size())
    return Training(_model(wanted), wanted.kit, wanted.output, _settings(wanted), {"draft": draft})


def draft_of(given: str, kit: Path) -> tuple[str, Any]:
    """Its name, and a new draft model of the shape of that name or the one in that file."""
    if given in DRAFTS:
        return given, new_draft(_tokenizer(kit).get_vocab_size(), DRAFTS[given])
    return Path(given).stem, model_of(*read(Path(given)))


def _settings(wanted: Wanted) -> Settings:
    """A GPU takes large batches and learns from the prompts, too; a CPU spends all it has on the answers, and so does
    a refinement, whose rate is lower, the lower the smaller its batches are."""
    gpu = wanted.device.startswith("cuda")
    common: dict[str, Any] = {"minutes": wanted.minutes, "device": wanted.device}
    if gpu:
        common |= {"rows": 32, "window": 1024, "save_minutes": 5.0, "workers": max(1, (os.cpu_count() or 1) // 2)}
    if wanted.refine is not None:
        own: dict[str, Any] = {"rate": 3e-4, "draft_rate": 2e-3} if gpu else {"rate": 6e-5, "rows": 8, "window": 512}
        return Settings(**common, **own, begun=1.0)
    return Settings(**common, prompt_weight=0.3 if gpu else 0.0)


def _model(wanted: Wanted) -> Any:
    tokenizer = _tokenizer(wanted.kit)
    alias = Alias(tokenizer.token_to_id("assistant") or 0, tokenizer.token_to_id(":") or 0)
    if wanted.grow is not None:
        config, weights = read(wanted.grow)
        model = with_circuit(config, weights, alias, above=0)
        protect(model, Layout(config["hidden_size"]))
        return model
    config = config_of(Shape(), tokenizer.get_vocab_size())
    weights = new_weights(config, torch.Generator().manual_seed(_SEED))
    return with_circuit(config, weights, alias, above=0, gain=NEW_GAIN)


def _tokenizer(kit: Path) -> Tokenizer:
    return Tokenizer.from_file(str(kit / "tokenizer.json"))


def copying(run: Training, kit: Path, tasks: tuple[str, ...], cases: int) -> dict[str, list[float]]:
    """Shares of exact answers and of right tokens, on held-out cases, in the model as it is now."""
    target = run.models["target"].eval()
    made = exactness(target, _tokenizer(kit), kit_texts(kit, "held"), tasks, cases)
    target.train()
    return made


def finish(run: Training, kit: Path, output: Path) -> None:
    """Write the checkpoints of the target and of the draft models into folders of these names."""
    for name, model in run.models.items():
        save_checkpoint(model, kit, output / name)
