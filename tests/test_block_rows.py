"""Guesses from the rows of one pass: which row, for which path, and by which random numbers."""

from __future__ import annotations

import numpy as np
import pytest

from edgespec.drafters.block_rows import BlockRows
from edgespec.sampling import Sampling
from edgespec.types import Floats

from .helpers import round_context

VOCAB = 9
CONTEXT = [3, 1, 4, 1, 5]
PATHS = ((), (7,), (2,), (7, 2), (7, 7), (2, 7))
PENALTIES = Sampling(temperature=0.8, seed=4, repetition_penalty=1.7, frequency_penalty=0.5)


def rows() -> Floats:
    return np.random.default_rng(1).normal(size=(3, VOCAB)).astype(np.float32)


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=0.8, seed=4), PENALTIES])
@pytest.mark.parametrize("rule", ["match", "rejection", "block"])
def test_a_guess_is_that_of_its_row_at_its_place(rule: str, sampling: Sampling) -> None:
    """The random numbers are those of its position: one used at two positions would bias the text. Penalties count the
    tokens of the path."""
    place = round_context(CONTEXT, sampling, rule)
    block = BlockRows(place, rows())
    for most in (1, 3):
        for path in PATHS:
            expected = place.draw(rows()[len(path)], path, most)
            found = block.guess(path, most)
            assert [(guess.token, guess.confidence) for guess in found] == [
                (guess.token, guess.confidence) for guess in expected
            ]
            for ours, theirs in zip(found, expected, strict=True):
                assert (ours.q is None) == (theirs.q is None)
                if ours.q is not None and theirs.q is not None:
                    assert [ours.q.of(token) for token in range(VOCAB)] == [theirs.q.of(t) for t in range(VOCAB)]


@pytest.mark.parametrize("rule", ["match", "rejection", "block"])
def test_a_guess_is_made_once(rule: str) -> None:
    """Below a sibling stands what stands below the first guess, unless penalties depend on the path."""
    plain, penalised = (
        BlockRows(round_context(CONTEXT, sampling, rule), rows())
        for sampling in (Sampling(temperature=0.8, seed=4), PENALTIES)
    )
    assert plain.guess((7,), 1) is plain.guess((2,), 1)
    assert penalised.guess((7,), 1) is not penalised.guess((2,), 1)
    assert penalised.guess((7,), 1) is penalised.guess((7,), 1)


def test_a_block_after_a_path_and_banned_tokens() -> None:
    place, made = round_context(CONTEXT), rows()
    best = int(made[0].argmax())
    block = BlockRows(place, made, (7,), (best,))
    assert [block.reaches(path) for path in ((), (7,), (7, 1, 1), (7, 1, 1, 1), (2,), (2, 1))] == [
        False, True, True, False, False, False,
    ]  # fmt: skip
    assert [guess.token for guess in block.guess((7,), VOCAB)][:2] == np.argsort(-made[0])[1:3].tolist()
    assert block.guess((7, 3), 1)[0].token == made[1].argmax()
    assert np.isfinite(made).all(), "the rows are not changed"
