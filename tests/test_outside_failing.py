"""Drafters of an app that fail or follow: they change no text, whatever they do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from edgespec import (
    Drafter,
    Evaluated,
    Guess,
    RoundContext,
    Target,
    assemble,
)
from edgespec.backends.toy import Bytes, ToyModel
from edgespec.testing import check_drafter
from edgespec.types import Distribution

from .outside_drafters import TALK, Mine, answer, opened


def fails(*_: Any) -> Any:
    raise RuntimeError("it broke\non two lines")


@pytest.mark.parametrize("k", [3, None])
@pytest.mark.parametrize("member", ["begin", "guess", "observe"])
def test_a_drafter_that_fails_drafts_no_more(member: str, k: int | None) -> None:
    mine = Mine()
    setattr(mine, member, fails)
    with opened(mine, names=("mine",), k=k) as runtime:
        (notice,) = answer(runtime).notices
        assert notice.startswith("The drafter 'mine' failed and drafts no more")
        assert notice.endswith("RuntimeError: it broke on two lines")
        assert answer(runtime).notices == ()
    assert mine.closed == 1


def test_a_close_that_fails_keeps_nothing_from_being_freed() -> None:
    class Model(ToyModel):
        closed = 0

        def close(self) -> None:
            self.closed += 1

    mine, model = Mine(), Model(TALK)
    mine.close = fails  # type: ignore[method-assign]
    assemble(model, drafters=[mine]).close()
    assert model.closed == 1


@pytest.mark.parametrize("price", [float("nan"), -1, "much", None])
def test_a_price_that_is_none_is_a_failure(price: Any) -> None:
    class Dear(Mine):
        @property
        def step_price(self) -> float:
            return price

    with opened(Dear(), names=("mine",), k=None) as runtime:
        assert any("its step_price is" in notice for notice in runtime.notices)
        answer(runtime)


HALF = Distribution(np.array([7, 8]), np.array([0.5, 0.5]))


@pytest.mark.parametrize(
    ("guesses", "says"),
    [
        ([Guess(Bytes.size, 0.5)], "guessed the token 259; the vocabulary has tokens 0 to 258"),
        ([Guess(-1, 0.5)], "guessed the token -1"),
        ([Guess(1 << 70, 0.5)], "guessed the token 1180591620717411303424"),
        ([Guess(1.5, 0.5)], "a guess is edgespec.Guess"),  # type: ignore[arg-type]
        ([(7, 0.5)], "a guess is edgespec.Guess"),
        ([7], "a guess is edgespec.Guess"),
        (7, "TypeError"),
        ([Guess(7, 2.0)], "confidence is 2.0"),
        ([Guess(7, float("nan"))], "confidence is nan"),
        ([Guess(7, 0.5), Guess(8, 0.5), Guess(9, 0.5)], "3 guesses, but at most 1 were requested"),
        ([Guess(7, 0.5)] * 2, "guess"),
        ([Guess(9, 0.5, HALF)], "the token 9 cannot have been drawn"),
        ([Guess(7, 0.5, HALF._replace(probs=HALF.probs * 2))], "the token 7 cannot have been drawn"),
        ([Guess(7, 0.5, HALF._replace(tokens=np.array([7, 999])))], "the token 7 cannot have been drawn"),
    ],
)
def test_a_guess_that_cannot_be_reaches_no_engine(guesses: Any, says: str) -> None:
    mine = Mine()
    mine.guess = lambda path, most: guesses  # type: ignore[method-assign]
    with opened(mine, names=("mine",)) as runtime:
        (notice,) = answer(runtime).notices
        assert says in notice


def test_numbers_of_numpy_are_taken() -> None:
    mine = Mine()
    right = mine.guess
    mine.guess = lambda path, most: [  # type: ignore[method-assign]
        Guess(np.int32(guess.token), np.float32(guess.confidence)) for guess in right(path, most)
    ]
    with opened(mine, names=("mine",)) as runtime:
        finished = answer(runtime)
        assert finished.notices == ()
        assert finished.stats.by_drafter["mine"][1] > 5


class Recycling(Drafter):
    """What the target held likeliest after a token when it last stood anywhere, in rejected drafts too."""

    name = "keeping"
    top: int | None = 4

    def __init__(self, _target: Target) -> None:
        self.after: dict[int, list[Guess]] = {}
        self.told: list[Evaluated] = []

    def begin(self, round_context: RoundContext) -> None:
        self.last, self.is_eog = round_context.tokens[-1], round_context.is_eog

    def guess(self, path: Sequence[int], most: int) -> Sequence[Guess]:
        last = path[-1] if path else self.last
        return [] if self.is_eog(last) else self.after.get(last, [])[:most]

    def evaluated(self, what: Evaluated) -> None:
        self.told.append(what)
        if what.top is not None:
            for token, tokens, probs in zip(what.tokens, what.top.tokens.tolist(), what.top.probs, strict=True):
                self.after[token] = [Guess(other, float(p)) for other, p in zip(tokens, probs, strict=True)]


def test_a_follower_of_an_app_is_told_of_prompts_and_rounds() -> None:
    made: list[Recycling] = []

    def make(target: Target) -> Recycling:
        made.append(Recycling(target))
        return made[-1]

    check_drafter(make)
    assert any(what.top is None for each in made for what in each.told)
    assert any(what.top is not None for each in made for what in each.told)
    made.clear()
    with opened(make, names=("keeping",)) as runtime:
        assert answer(runtime).notices == ()
        assert answer(runtime).stats.by_drafter["keeping"][1] > 5
    assert made[0].told[0] == Evaluated(0, (97, 98), (-1, 0), (0, 1), None)
    with opened(Mine(), names=("mine",)) as runtime:
        assert answer(runtime).notices == (), "who is no follower is not told"


@pytest.mark.parametrize("top", [-1, 65, "many", 1.5])
def test_a_follower_wants_a_number_of_tokens(top: Any) -> None:
    class Wants(Recycling):
        pass

    Wants.top = top
    with opened(Wants, names=("keeping",)) as runtime:
        answer(runtime)
        (notice,) = runtime.notices
        assert f"its top is {top!r}" in notice


def test_a_follower_that_fails_drafts_no_more() -> None:
    class Fails(Recycling):
        def evaluated(self, what: Evaluated) -> None:
            fails()

    with opened(Fails, names=("keeping",)) as runtime:
        (notice,) = answer(runtime).notices
        assert "it broke on two lines" in notice
