"""The training of a draft or a head on the target's answers, and its state on disk."""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from edgespec.converters.atomic_file import atomic_file

from ..errors import ModelFileError, OptionError
from ..tools.draft_value import ENOUGH, DraftValue
from .example import Example
from .learner import Learner
from .simulation import Right, score

_STATE, _BEST = "state.pt", "best.pt"
_VERSION = 1
_WARM_UP = 0.05  # of all steps
_FINAL = 0.1  # of the highest rate, at the end
_CLIP = 1.0  # the norm of a gradient


@dataclass(frozen=True, slots=True)
class Training:
    """How to train.

    Args:
        epochs: passes over the answers, at most.
        rate: of learning, at its highest (AdamW).
        batch: tokens of a step, with those that fill shorter answers up.
        window: tokens of a prompt and its answer; longer ones lose the beginning of the prompt.
        cross_entropy: the weight of the cross-entropy beside the divergence.
        checks: how often in an epoch acceptance is computed, and the state written.
        patience: checks without a better draft, after which the training ends.
        seed: of the order of the answers.
    """

    epochs: int = 3
    rate: float = 1e-4
    batch: int = 4096
    window: int = 1024
    cross_entropy: float = 0.1
    checks: int = 4
    patience: int = 4
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Checkup:
    """The draft after a part of the training.

    Args:
        step: steps made.
        tokens: tokens of answers seen.
        loss: the mean over the steps since the one before; NaN before the first.
        acceptance: the simulated acceptance rate of its first guess on the held-out answers.
        length: the simulated mean accepted length of drafts of 8 tokens.
        speedup: at the best draft length, at the prices of this machine.
    """

    step: int
    tokens: int
    loss: float
    acceptance: float
    length: float
    speedup: float


#: The value of a draft by its guesses in each held-out answer.
Judge = Callable[[Sequence[Right]], DraftValue]


class Trainer:
    """Trains a draft or a head; `run` goes on where an earlier one with the same folder was interrupted.

    Args:
        learner: what is trained. It ends up with the weights of the best checkup.
        examples: answers; those that are held out measure acceptance.
        training: how.
        judge: computes the value of the draft.
        folder: for the state, some 16 bytes a trained parameter.
        identity: what the training depends on beside `training`: the answers, the draft.

    Raises:
        OptionError: the folder has the state of another training.
        ModelFileError: the state is damaged.
    """

    def __init__(
        self,
        learner: Learner,
        examples: Sequence[Example],
        training: Training,
        judge: Judge,
        folder: Path,
        identity: Mapping[str, Any],
    ) -> None:
        import torch  # noqa: PLC0415

        self._torch = torch
        self._learner, self._weights = learner, learner.trained
        learner.to(_device(torch))
        known = [each.within(training.window) for each in examples if learner.knows(each)]
        self._seen = [each for each in known if not each.held_out and len(each.answer)]
        self._held_out = [each for each in known if each.held_out and len(each.answer)]
        self._training, self._judge, self._folder = training, judge, folder
        self._identity = {"version": _VERSION, **asdict(training), **identity}
        self._optimizer = torch.optim.AdamW(
            self._weights.parameters(), training.rate, betas=(0.9, 0.98), weight_decay=0.01
        )
        self.history: list[Checkup] = []
        self._step = self._tokens = 0
        folder.mkdir(parents=True, exist_ok=True)
        self._per_epoch = len(self._batches(0))
        self.steps = training.epochs * self._per_epoch
        self._resume()

    @property
    def finished(self) -> bool:
        """Whether all steps were made, or the last checkups found no better draft."""
        scores = [(each.speedup, each.length) for each in self.history]
        if self._step >= self.steps:
            return bool(scores)
        best = max(range(len(scores)), key=lambda i: (*scores[i], -i), default=0)
        return len(scores) - 1 - best >= self._training.patience

    def run(self) -> Generator[tuple[int, int], None, None]:
        """Train; yields the number of steps made, and that of all. At the end the learner has the best weights.

        Raises:
            ConversionError: the state cannot be written.
            OptionError: the held-out answers are too few.
        """
        every = max(1, self._per_epoch // self._training.checks)
        losses: list[float] = []
        if not self.history:
            self._check(math.nan)
        while not self.finished:
            epoch, number = divmod(self._step, self._per_epoch)
            for batch in self._batches(epoch)[number:]:
                losses.append(self._train(batch))
                yield self._step, self.steps
                if self._step % every == 0 or self._step == self.steps:
                    self._check(float(np.mean(losses)))
                    losses = []
                    if self.finished:
                        break
        self._weights.load_state_dict(_loaded(self._torch, self._folder / _BEST))

    def _batches(self, epoch: int) -> list[list[Example]]:
        """The examples of each step, in an order that depends on the seed and the epoch."""
        order = np.random.default_rng([self._training.seed, epoch])
        shuffled = [self._seen[i] for i in order.permutation(len(self._seen))]
        batches = _alike(shuffled, self._training.batch)
        return [batches[i] for i in order.permutation(len(batches))]

    def _train(self, batch: Sequence[Example]) -> float:
        torch = self._torch
        for group in self._optimizer.param_groups:
            group["lr"] = self._training.rate * self._share(self._step)
        loss = self._learner.loss(batch, self._training.cross_entropy)
        self._optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self._weights.parameters(), _CLIP)
        self._optimizer.step()
        self._step += 1
        self._tokens += sum(len(each.answer) for each in batch)
        return float(loss.detach())

    def _share(self, step: int) -> float:
        """The share of the highest rate: a linear warm-up, then a cosine."""
        decay = _FINAL + (1 - _FINAL) * (1 + math.cos(math.pi * step / self.steps)) / 2
        return min(1.0, (step + 1) / max(1.0, _WARM_UP * self.steps)) * decay

    def _check(self, loss: float) -> None:
        """Compute acceptance, keep the weights if they are the best so far, and write the state."""
        value = self._judge(list(self._right()))
        if not value.acceptance:
            raise OptionError(
                f"the {len(self._held_out)} held-out answers are too short for {ENOUGH} drafts, by which acceptance is "
                "known; give more prompts (--prompts)"
            )
        speedup, length = score(value)
        found = Checkup(self._step, self._tokens, loss, value.acceptance[0], length, speedup)
        if all((each.speedup, each.length) < (speedup, length) for each in self.history):
            self._save(_BEST, self._weights.state_dict())
        self.history.append(found)
        state = {
            "identity": self._identity,
            "model": self._weights.state_dict(),
            "optimizer": self._optimizer.state_dict(),
            "step": self._step,
            "tokens": self._tokens,
            "history": [asdict(each) for each in self.history],
        }
        self._save(_STATE, state)

    def _right(self) -> Iterator[Right]:
        """The learner's guesses in the held-out answers."""
        with self._torch.inference_mode():
            for batch in _alike(self._held_out, self._training.batch):
                yield from self._learner.right(batch)

    def _save(self, name: str, state: Any) -> None:
        size = sum(each.numel() * 4 for each in self._weights.parameters()) * (1 if name == _BEST else 3)
        with atomic_file(self._folder / name, size, force=True) as file:
            writer = _Writer(file)
            try:
                self._torch.save(state, writer)
            except RuntimeError:
                if writer.error is None:
                    raise
                raise writer.error from None

    def _resume(self) -> None:
        path = self._folder / _STATE
        if not path.is_file():
            return
        state = _loaded(self._torch, path)
        if state["identity"] != self._identity:
            raise OptionError(
                f"{self._folder} holds a training with other options or answers; choose another --out, or --force to "
                "begin it again"
            )
        self._weights.load_state_dict(state["model"])
        self._optimizer.load_state_dict(state["optimizer"])
        self._step, self._tokens = state["step"], state["tokens"]
        self.history = [Checkup(**each) for each in state["history"]]


class _Writer:
    """A file for torch, which replaces an error of writing by one of its own that does not name the cause."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.error: OSError | None = None

    def write(self, data: bytes) -> int:
        try:
            return self._file.write(data)
        except OSError as error:
            self.error = error
            raise

    def flush(self) -> None:
        self._file.flush()


def _alike(examples: Sequence[Example], tokens: int) -> list[list[Example]]:
    """The examples in batches of similar length, each of at most `tokens` tokens, or of one example."""
    batches: list[list[Example]] = []
    for example in sorted(examples, key=lambda each: len(each.tokens)):
        # The newest is the longest, to which the others are filled up.
        if not batches or (len(batches[-1]) + 1) * len(example.tokens) > tokens:
            batches.append([])
        batches[-1].append(example)
    return batches


def _loaded(torch: Any, path: Path) -> Any:
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, RuntimeError, EOFError, KeyError, pickle.UnpicklingError) as error:
        raise ModelFileError(f"{path} is damaged; delete its folder, and the training begins again") from error


def _device(torch: Any) -> str:
    """Where to train."""
    if torch.cuda.is_available():
        return "cuda"
    return "mps" if torch.backends.mps.is_available() else "cpu"
