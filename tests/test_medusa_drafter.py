"""The drafter of Medusa heads by itself: from which state it guesses, and what it makes of what the heads say."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from edgespec.drafters.medusa import MedusaDrafter
from edgespec.errors import ClosedError
from edgespec.sampling import Sampling
from edgespec.types import Floats, Ints

from .helpers import ToyHeads, round_context

VOCAB = 12
CONTEXT = [3, 1, 4, 1, 5]


class Recorded(ToyHeads):
    """Heads that say what a test gives, or for any state [s, ...] the tokens s + 1, s + 2, ... one after the other."""

    width = 2

    def __init__(self, tokens: Sequence[Sequence[int]] = (), logs: Sequence[Sequence[float]] = ()) -> None:
        super().__init__(lambda _context: np.zeros(VOCAB, np.float32), len(tokens) or 3)
        self.asked: list[list[float]] = []
        self._said = np.array(tokens), np.array(logs, np.float32)

    def guesses(self, state: Floats) -> tuple[Ints, Floats]:
        self.asked.append(state.tolist())
        if len(self._said[0]):
            return self._said
        first = int(state[0]) + 1
        return np.array([[first + n, 0] for n in range(3)]), np.log(np.array([[0.9, 0.1]] * 3, np.float32))


def state(*numbers: float) -> Floats:
    return np.array([numbers], np.float32)


def told(heads: ToyHeads, length: int = len(CONTEXT) - 1, *, said: float = 6.0) -> MedusaDrafter:
    drafter = MedusaDrafter(heads, VOCAB, 0.1)
    drafter.heard(length - 1, CONTEXT[length - 1 : length], state(said, 0))
    return drafter


def test_head_i_guesses_at_depth_i_from_the_last_state() -> None:
    heads = Recorded()
    drafter = told(heads)
    drafter.begin(round_context(CONTEXT))
    assert [drafter.guess((9,) * depth, 1)[0].token for depth in range(3)] == [7, 8, 9]
    assert not drafter.guess((9, 9, 9), 1), "there are three heads"
    assert heads.asked == [[6.0, 0.0]], "one pass for all"
    drafter.heard(4, CONTEXT[4:], state(2, 1))
    drafter.begin(round_context([*CONTEXT, 9]))
    assert drafter.guess((), 1)[0].token == 3
    assert heads.asked[1:] == [[2.0, 1.0]]


@pytest.mark.parametrize("length", [1, 3, 5])
def test_a_state_of_another_place_is_not_used(length: int) -> None:
    heads = Recorded()
    drafter = told(heads, length)
    drafter.begin(round_context(CONTEXT))
    assert not drafter.guess((), 1)
    assert not heads.asked


def test_a_forgotten_state_is_not_used() -> None:
    """Even if the text becomes as long again: its tokens may be others."""
    drafter = told(Recorded())
    drafter.forget(2)
    assert drafter.last_state() is None
    drafter.begin(round_context([3, 1, 9, 9, 9]))
    assert not drafter.guess((), 1)


def test_a_state_is_copied() -> None:
    """It is valid during the call only."""
    drafter, row = MedusaDrafter(Recorded(), VOCAB, 0.1), state(6, 0)
    drafter.heard(3, CONTEXT[3:4], row)
    row[:] = 0
    drafter.begin(round_context(CONTEXT))
    assert drafter.guess((), 1)[0].token == 7


def test_nothing_is_guessed_after_the_end_of_a_text() -> None:
    drafter = told(Recorded())
    drafter.begin(round_context(CONTEXT, is_eog=lambda token: token == 2))
    assert drafter.guess((7,), 1)
    assert not drafter.guess((2,), 1)


def test_what_the_heads_say_of_no_token_is_left_out() -> None:
    """Of tokens beyond the vocabulary, and chances that are no numbers."""
    heads = Recorded([[VOCAB, 4, -1, 5, 6]], [[-0.1, -1.0, -0.2, np.nan, -2.0]])
    drafter = told(heads)
    drafter.begin(round_context(CONTEXT))
    assert [guess.token for guess in drafter.guess((), 5)][:2] == [4, 6]


@pytest.mark.parametrize("verifier", ["rejection", "block"])
def test_chances_are_those_of_the_logarithms(verifier: str) -> None:
    drafter = told(Recorded([[4, 5]], [[float(np.log(0.75)), float(np.log(0.25))]]))
    drafter.begin(round_context(CONTEXT, Sampling(temperature=1.0, seed=2), verifier))
    (guess,) = drafter.guess((), 1)
    assert guess.q is not None
    assert (guess.q.of(4), guess.q.of(5)) == pytest.approx((0.75, 0.25), abs=1e-6)


def test_out_of_order() -> None:
    drafter = told(Recorded())
    with pytest.raises(ClosedError):
        drafter.guess((), 1)
    drafter.begin(round_context(CONTEXT))
    drafter.close()
    with pytest.raises(ClosedError):
        drafter.guess((), 1)
