"""What a grammar does to drafters: its errors end a guess and no more, and masks depend on the path."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from edgespec.backends.toy import Bytes
from edgespec.constraint import Mask
from edgespec.drafters.block_rows import BlockRows
from edgespec.drafters.failsafe import Failsafe
from edgespec.errors import GrammarError
from edgespec.sampling import Sampling
from edgespec.types import Guess

from .grammar_runs import TARGET, bound, drafting, round_context
from .helpers import Clock


class Failing:
    """A constraint that becomes too complex after `x`."""

    def __init__(self) -> None:
        self._allowed = np.ones(Bytes.size, np.bool_)

    def allowed(self, path: Sequence[int] = ()) -> Mask:
        if path and path[-1] == ord("x"):
            raise GrammarError("the grammar cannot be followed: too complex; use a simpler grammar")
        return self._allowed

    def admits(self, path: Sequence[int]) -> int:
        return len(path)

    def forced(self, path: Sequence[int] = ()) -> Sequence[int]:
        return ()

    def ended(self, path: Sequence[int] = ()) -> bool:
        return False

    def commit(self, token: int) -> None:
        raise NotImplementedError(token)


@pytest.mark.parametrize("rule", ["match", "rejection", "block"])
def test_an_error_of_the_grammar_ends_the_guess_and_not_the_drafter(rule: str) -> None:
    drafter = Failsafe(drafting(TARGET, Clock()))
    drafter.begin(round_context(Failing(), rule))
    assert drafter.guess([ord("x")], 1) == ()
    assert not drafter.notice
    assert len(drafter.guess([ord("y")], 1)) == 1


@pytest.mark.parametrize("rule", ["match", "rejection", "block"])
def test_a_bias_against_all_that_is_allowed_on_a_path_ends_the_guess(rule: str) -> None:
    bans = Sampling(temperature=0.8, logit_bias=((ord("("), -np.inf), *((n, -np.inf) for n in b"0123456789")))
    drafter = Failsafe(drafting(TARGET, Clock()))
    drafter.begin(round_context(bound("gbnf").begin(), rule, bans))
    assert drafter.guess([ord("(")], 1) == ()
    assert not drafter.notice


def test_guesses_of_one_pass_follow_the_grammar_by_their_path() -> None:
    """Of one row: after `(` another one or a digit, after `1` a digit or the end."""
    rows = np.zeros((2, Bytes.size), np.float32)
    rows[1, ord("(")] = 2.0
    rows[1, ord("7")] = 1.0
    block = BlockRows(round_context(bound("gbnf").begin()), rows)
    assert [block.guess(list(path), 1)[0].token for path in (b"(", b"1")] == [ord("("), ord("7")]


def test_what_is_not_admitted_is_left_out_unless_it_was_drawn() -> None:
    place = round_context(bound("gbnf").begin())
    drawn = place._replace(verifier=round_context(None, "rejection").verifier, sampling=Sampling(temperature=1.0))
    one = drawn.draw(np.zeros(Bytes.size, np.float32), [ord("(")])[0]
    given = [Guess(ord("x"), 1.0), Guess(ord("1"), 1.0), Guess(ord("x"), 1.0, one.q)]
    assert [guess.token for guess in place.admitted([ord("(")], given)] == [ord("1"), ord("x")]


@pytest.mark.parametrize("rule", ["rejection", "block"])
def test_q_is_that_after_the_mask(rule: str) -> None:
    place = round_context(bound("gbnf").begin(), rule, Sampling(temperature=1.0))
    guess = place.draw(np.zeros(Bytes.size, np.float32), [ord("(")])[0]
    assert guess.q is not None
    assert sorted(guess.q.tokens.tolist()) == sorted(b"(0123456789")
