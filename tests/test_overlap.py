"""The acceptance rate at all places, by the definition."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks.overlap import accepted, answers, overlap
from edgespec import Device, Speculation, load

PAIR = Path(__file__).parent / "pair"


def logits(*chances: float) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    return np.log(np.array(chances, np.float32)).ravel()


def test_the_chance_is_the_overlap_of_the_distributions() -> None:
    p, q = logits(0.5, 0.3, 0.2), logits(0.1, 0.6, 0.3)
    assert accepted(p, q, 1.0) == pytest.approx(0.1 + 0.3 + 0.2)
    assert accepted(p, p, 0.7) == pytest.approx(1.0)


def test_a_temperature_sharpens_both() -> None:
    p, q = logits(0.8, 0.2), logits(0.2, 0.8)
    sharper = 0.2**2 / (0.8**2 + 0.2**2)
    assert accepted(p, q, 0.5) == pytest.approx(2 * sharper)


def test_at_temperature_0_the_likeliest_tokens_are_compared() -> None:
    assert accepted(logits(0.5, 0.4, 0.1), logits(0.4, 0.3, 0.3), 0.0) == 1.0
    assert accepted(logits(0.5, 0.4, 0.1), logits(0.3, 0.4, 0.3), 0.0) == 0.0


def test_columns_beyond_the_targets_vocabulary_are_left_out() -> None:
    assert accepted(logits(0.6, 0.4), logits(0.3, 0.2, 0.5), 1.0) == pytest.approx(1.0)


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_a_model_overlaps_with_itself_and_less_with_its_draft(temperature: float) -> None:
    target, draft = PAIR / "target.gguf", PAIR / "draft.gguf"
    with load(target, device=Device(512, 1), speculation=Speculation((), 0)) as runtime:
        prompts = [
            runtime.prompt([{"role": "user", "content": text}]) for text in ("I need a taxi.", "Find me a hotel.")
        ]
        said = answers(runtime, prompts, temperature, 24)
    assert sum(map(len, said)) > 10
    assert overlap(target, target, prompts, said, temperature) == pytest.approx(1.0)
    assert 0.3 < overlap(target, draft, prompts, said, temperature) < 0.98
