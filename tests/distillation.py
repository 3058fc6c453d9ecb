"""Small trainings: a target that follows a rule, and drafts of a few thousand numbers."""

from __future__ import annotations

import importlib.util
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from edgespec.distill.example import LIKELY, Example
from edgespec.distill.simulation import Right, simulated
from edgespec.tools.draft_value import DraftValue

VOCABULARY = 48
PRICES = DraftValue((), tuple(1.0 + 0.05 * width for width in range(9)), 0.1)

with_torch = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("torch", "transformers")),
    reason="torch and transformers are not installed: pip install 'edgespec[distill]'",
)


def example(seed: int, *, held_out: bool = False, length: int = 24, start: int = 4) -> Example:
    """A text in which each token is three more than the one before; the target is sure of it to nine tenths."""
    tokens = (np.arange(length) * 3 + seed) % VOCABULARY
    said = tokens[start:]
    likely = (said[:, None] + np.arange(LIKELY)) % VOCABULARY
    probabilities = np.full((len(said), LIKELY), 0.1 / LIKELY)
    probabilities[:, 0] = 0.9
    logprobs = np.log(probabilities).astype(np.float16)
    return Example(tokens.astype(np.int32), start, likely.astype(np.int32), logprobs, 0.0, held_out)


def examples(count: int = 40) -> list[Example]:
    """Of which a fourth is held out."""
    return [example(seed, held_out=seed % 4 == 0, length=16 + seed % 5) for seed in range(count)]


def judge(right: Sequence[Right]) -> DraftValue:
    return simulated(right, PRICES)


def student(seed: int = 0) -> Any:
    """A random Llama with one layer."""
    import torch  # noqa: PLC0415
    from transformers import AutoModelForCausalLM, LlamaConfig  # noqa: PLC0415

    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
    )
    return AutoModelForCausalLM.from_config(config, dtype=torch.float32)


@contextmanager
def small_files(most: int) -> Iterator[None]:
    """No file may be larger, as on a disk that is nearly full."""
    import resource  # noqa: PLC0415 - Windows has none

    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
