"""Models with a recurrent state opened for tests, and what a new session of them computes."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np

from edgespec import Device, Interrupt, Runtime, load
from edgespec.backends import Session, open_model
from edgespec.backends.llama import LlamaModel
from edgespec.types import Floats

from . import hybrids
from .hybrid_steps import ROUNDING

WITH_SNAPSHOTS = ("qwen35", "qwen35moe", "lfm2", "nemotron_h")
TEXT = [5 + 7 * n % 250 for n in range(60)]
WORDS = [9 + 11 * n % 240 for n in range(12)]


def all_files(folder: Path) -> dict[str, Path]:
    """A model of each architecture."""
    return {name: hybrids.write(folder / f"{name}.gguf", name) for name in hybrids.ARCHITECTURES}


def opened(path: Path, interrupt: Interrupt | None = None, **device: Any) -> LlamaModel:
    model = open_model(path, Device(threads=1, **device), interrupt or Interrupt())
    assert isinstance(model, LlamaModel)
    return model


def fresh(model: LlamaModel, text: Sequence[int], words: Sequence[int]) -> Floats:
    with closing(model.session(256, Interrupt())) as session:
        session.prefill(text)
        return session.decode(words).copy()


def agrees(session: Session, model: LlamaModel) -> None:
    """Raises AssertionError unless the next logits are those of a new session with the same text."""
    text = list(session.tokens)
    np.testing.assert_allclose(session.decode(WORDS), fresh(model, text, WORDS), atol=ROUNDING)
    session.rollback(len(text))


class Poll:
    """A native function that aborts the pass at its `after`-th call."""

    def __init__(self) -> None:
        self.after = -1
        self.calls = 0
        self.native = ctypes.CFUNCTYPE(ctypes.c_bool, ctypes.c_void_p)(self._aborts)

    def _aborts(self, _data: int) -> bool:
        self.calls += 1
        self.after -= 1
        return self.after == 0


def runtime(path: Path, draft: Path | None = None, **options: Any) -> Runtime:
    return load(path, draft, device=Device(context=256, threads=1), **options)
