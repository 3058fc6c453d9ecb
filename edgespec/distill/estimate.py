"""The time, memory and disk space that a distillation will take, before it starts."""

from __future__ import annotations

import shutil
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from edgespec.models.sizes import amount

from ..errors import EngineError, OptionError
from .collecting import Wanted
from .example import LIKELY, Example, size_of
from .learner import Learner
from .training import Training

_FROZEN = 4  # bytes of a parameter that is not trained, in memory and on disk
_STATE = 16  # bytes a parameter, in memory: weights, gradients and two moments, in float32
_KEPT = 32  # bytes a parameter, on disk: two states of 12 while one is replaced, the best weights twice
_LAYER = 40  # numbers of 4 bytes that a layer keeps for the gradient, a token and a number of its width
_LOGITS = 5  # rows of logits at a time: logits, their softmax, and the gradients of both
_TIMED = 256  # tokens of the step that is timed


@dataclass(frozen=True, slots=True)
class Student:
    """The sizes of what is trained.

    Args:
        parameters: that are trained.
        vocabulary: logits of a place.
        width: numbers of a row between layers.
        layers: how many.
        frozen: parameters that are not trained.
        row: numbers that are stored of each token, of the target's hidden rows.
    """

    parameters: int
    vocabulary: int
    width: int
    layers: int
    frozen: int = 0
    row: int = 0


@dataclass(frozen=True, slots=True)
class Estimate:
    """What it will take, at most.

    Args:
        tokens: of all answers.
        answering: seconds.
        trained: tokens of all training steps.
        answered: the share of answers in those, the others being prompts.
        memory: bytes, while training.
        disk: bytes.
    """

    tokens: int
    answering: float
    trained: int
    answered: float
    memory: int
    disk: int

    def line(self, pace: float) -> str:
        """For users; `pace` is the seconds that a token takes in training."""
        return (
            f"at most: {self.tokens:,} tokens of answers in {_span(self.answering)}, training "
            f"{_span(self.trained * pace)}, "
            f"{amount(self.memory)} of memory and {amount(self.disk)} on disk"
        )

    def require(self, folder: Path, free: int) -> None:
        """Raise unless the machine has the memory and the disk space.

        Args:
            folder: on the disk.
            free: bytes of memory.

        Raises:
            OptionError: the disk is too small.
            EngineError: the memory is.
        """
        room = shutil.disk_usage(folder).free
        if self.disk > room:
            raise OptionError(
                f"not enough space in {folder}: the distillation takes {amount(self.disk)}, and {amount(room)} are "
                "free; free space, or choose another --out"
            )
        if self.memory > free:
            raise EngineError(
                f"not enough memory: training takes about {amount(self.memory)}, and {amount(free)} are free; take a "
                "smaller draft, --lora, or a smaller --batch"
            )


def estimated(student: Student, wanted: Wanted, training: Training, plain: float) -> Estimate:
    """What a distillation will take.

    Args:
        plain: seconds of a plain step of the target; 0 if all answers are there.
    """
    tasks = wanted.tasks
    tokens = wanted.max_tokens * len(tasks)
    prompts = sum(min(training.window, len(prompt.tokens)) for prompt, _ in tasks)
    batch = max(training.batch, training.window)
    held = student.width * student.layers * _LAYER * 4 + student.vocabulary * 4 * _LOGITS
    return Estimate(
        tokens,
        tokens * plain,
        (tokens + prompts) * training.epochs,
        tokens / max(1, tokens + prompts),
        student.parameters * _STATE + student.frozen * _FROZEN + batch * (held + student.row * 4),
        student.parameters * _KEPT
        + student.frozen * _FROZEN
        + size_of(tokens, prompts)
        + (tokens + prompts) * student.row * 2,
    )


def training_pace(learner: Learner, answered: float, row: int = 0) -> float:
    """Seconds that a token takes in training, by a short step, which changes no weights.

    Args:
        answered: the share of answers in the tokens: EAGLE-3 heads compute chains of guesses in answers alone.
        row: numbers of the target's hidden rows, for a learner that reads them.
    """
    start = min(max(2, round(_TIMED * (1 - answered))), _TIMED - 2)
    tokens, likely = np.zeros(_TIMED, np.int32), np.zeros((_TIMED - start, LIKELY), np.int32)
    rows = np.zeros((_TIMED, row), np.float16) if row else None
    example = Example(tokens, start, likely, np.full(likely.shape, -10, np.float16), 0.0, False, rows)
    for _ in range(2):  # the first one starts threads and allocates
        started = time.perf_counter()
        learner.loss([example], 0.0).backward()
        seconds = time.perf_counter() - started
    return seconds / _TIMED


def _span(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
