"""What drafters take to learn counts as a loss of speculation, and ends when no more may be lost."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace

import pytest

from edgespec.backends.toy import ToySession
from edgespec.controller.adaptive import Adaptive
from edgespec.controller.budget import Budget
from edgespec.drafters.recycling import Recycling
from edgespec.engine import Request, Text
from edgespec.prices import Prices
from edgespec.types import Evaluated, Guess

from .engine_runs import PROMPT, TARGET, VOCAB, engine

LEARNING = 0.5  # seconds


class Pupil(Recycling):
    """Keeps rows, which takes its time, and never guesses."""

    def __init__(self) -> None:
        super().__init__(VOCAB)
        self.now = 0.0
        self.rows: list[bool] = []  # by pass after the prompt, whether it got any

    def guess(self, path: Sequence[int], most: int) -> Sequence[Guess]:
        return ()

    def evaluated(self, what: Evaluated) -> None:
        super().evaluated(what)
        if what.start >= len(PROMPT) - 1:
            self.rows.append(what.top is not None)
            self.now += LEARNING


@pytest.fixture
def pupil(monkeypatch: pytest.MonkeyPatch) -> Pupil:
    made = Pupil()
    monkeypatch.setattr("edgespec.engine.time", SimpleNamespace(perf_counter=lambda: made.now))
    return made


def answered(pupil: Pupil, tokens: int, plain: float) -> list[Text]:
    controller = Adaptive([pupil], Prices([plain] * 4))
    events = engine(ToySession(TARGET, VOCAB), controller).generate(Request(PROMPT, max_tokens=tokens))
    return [event for event in events if isinstance(event, Text)]


def test_what_a_round_took_to_learn_counts_in_the_next(pupil: Pupil) -> None:
    seconds = [text.round.draft_seconds for text in answered(pupil, 6, plain=1000.0)]
    assert seconds == [0.0, *[LEARNING] * 5]


def test_rows_are_kept_until_no_more_may_be_lost(pupil: Pupil) -> None:
    """Half a plain step is lost in each round: the credit of the beginning, 4 steps, is spent after nine."""
    answered(pupil, 24, plain=1.0)
    assert all(pupil.rows[:8])
    assert not any(pupil.rows[10:])


def test_rows_are_kept_for_as_long_as_there_is_credit(pupil: Pupil, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Budget, "is_left", True)
    answered(pupil, 24, plain=1.0)
    assert all(pupil.rows)
