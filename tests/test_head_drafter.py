"""What drafters with a head over the target's hidden rows (`mtp`, `eagle3`) ask it, and what they make of its rows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from edgespec.drafters.eagle3 import Eagle3Drafter
from edgespec.drafters.head import HeadDrafter
from edgespec.drafters.mtp import MtpDrafter
from edgespec.errors import ClosedError, EngineError
from edgespec.sampling import Sampling, distribution
from edgespec.types import Floats

from .helpers import never, round_context

VOCAB = 12
CONTEXT = [3, 1, 4, 1, 5]


class ToyHead:
    """A head whose logits depend on the last token and the whole path; it records what it is asked."""

    vocab = VOCAB

    def __init__(self, context: int = 99, follows: bool = True) -> None:
        self.context, self.in_line = context, follows
        self.asked: list[tuple[int, tuple[int, ...]]] = []
        self.closed = 0

    def follows(self, context: Sequence[int]) -> bool:
        return self.in_line

    def row(self, last: int, path: Sequence[int]) -> Floats:
        return np.random.default_rng([last, len(path), *path]).normal(size=VOCAB).astype(np.float32)

    def logits(self, last: int, path: Sequence[int]) -> Floats:
        self.asked.append((last, tuple(path)))
        return self.row(last, path)

    def close(self) -> None:
        self.closed += 1


KINDS = [Eagle3Drafter, MtpDrafter]


@pytest.fixture(params=KINDS, ids=lambda kind: kind.name)
def kind(request: pytest.FixtureRequest) -> type[HeadDrafter]:
    found: type[HeadDrafter] = request.param
    return found


def test_it_asks_for_the_last_token_and_the_whole_path(kind: type[HeadDrafter]) -> None:
    head = ToyHead()
    drafter = kind(head)
    drafter.begin(round_context(CONTEXT))
    for path in ((), (7,), (7, 2), (8,), (7, 2, 9)):
        (guess,) = drafter.guess(path, 1)
        assert guess.token == head.row(5, path).argmax()
    assert head.asked == [(5, ()), (5, (7,)), (5, (7, 2)), (5, (8,)), (5, (7, 2, 9))]


def test_siblings_are_the_next_likeliest_of_one_row(kind: type[HeadDrafter]) -> None:
    head = ToyHead()
    drafter = kind(head)
    drafter.begin(round_context(CONTEXT))
    guesses = drafter.guess((7,), 3)
    assert [guess.token for guess in guesses] == np.argsort(-head.row(5, (7,)))[:3].tolist()
    assert len(head.asked) == 1


@pytest.mark.parametrize("verifier", ["rejection", "block"])
def test_a_drawn_guess_comes_with_the_distribution_it_was_drawn_from(kind: type[HeadDrafter], verifier: str) -> None:
    head, sampling = ToyHead(), Sampling(temperature=0.8, seed=4, repetition_penalty=1.5)
    drafter = kind(head)
    drafter.begin(round_context(CONTEXT, sampling, verifier))
    for path in ((), (7,), (7, 7)):
        (guess,) = drafter.guess(path, 3)
        assert guess.q is not None
        recent = sampling.recent(CONTEXT, path)
        expected = distribution(head.row(5, path), sampling, recent)
        for token in range(VOCAB):
            assert guess.q.of(token) == pytest.approx(expected.of(token), abs=1e-12)


def test_under_match_it_draws_by_the_noise_of_the_place(kind: type[HeadDrafter]) -> None:
    """That which the target will use there, so that equal rows choose equal tokens."""
    head = ToyHead()
    drafter, place = kind(head), round_context(CONTEXT, Sampling(temperature=1.0, seed=4))
    drafter.begin(place)
    for path in ((), (7,), (7, 2)):
        assert drafter.guess(path, 2) == place.draw(head.row(5, path), path, 2)


def test_where_it_is_not_asked(kind: type[HeadDrafter]) -> None:
    """The head lacks rows; the text has ended; the context is full."""
    for head, path, is_eog in (
        (ToyHead(follows=False), (), never),
        (ToyHead(), (7, 2), lambda token: token == 2),
        (ToyHead(context=6), (7, 2), never),
    ):
        drafter = kind(head)
        drafter.begin(round_context(CONTEXT, is_eog=is_eog))
        assert not drafter.guess(path, 2)
        assert not head.asked
    last = kind(ToyHead(context=6))
    last.begin(round_context(CONTEXT))
    assert last.guess((7,), 1)


def test_each_round_asks_anew_whether_the_head_follows(kind: type[HeadDrafter]) -> None:
    head = ToyHead()
    drafter = kind(head)
    for head.in_line in (True, False, True):
        drafter.begin(round_context(CONTEXT))
        assert bool(drafter.guess((), 1)) is head.in_line


def test_rows_that_are_no_numbers_and_calls_out_of_order(
    kind: type[HeadDrafter], monkeypatch: pytest.MonkeyPatch
) -> None:
    head = ToyHead()
    drafter = kind(head)
    with pytest.raises(ClosedError, match="before begin"):
        drafter.guess((), 1)
    drafter.begin(round_context(CONTEXT))
    monkeypatch.setattr(head, "row", lambda *_: np.full(VOCAB, np.nan, np.float32))
    with pytest.raises(EngineError, match="the draft model computes no numbers"):
        drafter.guess((), 1)
    drafter.close()
    assert head.closed == 1
