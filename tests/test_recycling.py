"""Token recycling: which rows it keeps, by which of them it guesses, and what it forgets."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from edgespec.backends.toy import ToySession, blend
from edgespec.drafters import Drafter
from edgespec.drafters.recycling import Recycling
from edgespec.engine import Request
from edgespec.errors import OptionError
from edgespec.sampling import Sampling, pick
from edgespec.types import Evaluated, Floats, Guess, Top
from edgespec.verify import RoundContext, verifier

from .engine_runs import CONTROLLERS, OTHER, PROMPT, TARGET, VOCAB, engine
from .helpers import Clock, RuleDrafter, TreeController, WrongFirstDrafter, never


def guesses(
    drafter: Recycling,
    context: Sequence[int],
    path: Sequence[int] = (),
    most: int = 8,
    sampling: Sampling = Sampling(),  # noqa: B008 - frozen
    rule: str = "match",
) -> Sequence[Guess]:
    drafter.begin(RoundContext(verifier(rule), sampling, context, never))
    return drafter.guess(path, most)


def tokens(found: Sequence[Guess]) -> list[int]:
    return [guess.token for guess in found]


def top(*rows: Sequence[int]) -> Top:
    """Rows of tokens that have the probabilities .5, .25, ..., and others that have none."""
    found, probs = np.zeros((len(rows), Recycling.top), np.int64), np.zeros((len(rows), Recycling.top))
    for n, row in enumerate(rows):
        found[n, : len(row)] = row
        probs[n, : len(row)] = 0.5 ** np.arange(1, len(row) + 1)
    return Top(found, probs)


def chain(start: int, path: Sequence[int], rows: Sequence[Sequence[int]]) -> Evaluated:
    """The pass over a chain that was kept, with the likeliest tokens after each of its tokens."""
    return Evaluated(start, tuple(path), tuple(range(-1, len(path) - 1)), tuple(range(len(path))), top(*rows))


def test_two_tokens_are_known_better_than_one() -> None:
    drafter = Recycling(30)
    assert guesses(drafter, [1, 2]) == []
    drafter.evaluated(chain(0, [1, 2], [[9, 8], [7, 6]]))
    assert guesses(drafter, [1, 2]) == [Guess(7, 0.5), Guess(6, 0.25)]
    assert guesses(drafter, [1, 2], most=1) == [Guess(7, 0.5)]
    assert guesses(drafter, [5, 2]) == [Guess(7, 0.25), Guess(6, 0.125)], "half as sure by one token"
    assert guesses(drafter, [1]) == [Guess(9, 0.25), Guess(8, 0.125)]
    assert guesses(drafter, [4], [1, 2]) == guesses(drafter, [4, 1], [2]) == guesses(drafter, [1, 2])
    drafter.evaluated(chain(0, [5, 2], [[9, 8], [3, 4]]))
    assert tokens(guesses(drafter, [1, 2])) == [7, 6], "these two tokens have a row of their own"
    assert tokens(guesses(drafter, [8, 2])) == [3, 4], "the latest"
    drafter.close()
    assert guesses(drafter, [1, 2]) == []


def test_the_oldest_pairs_are_dropped() -> None:
    drafter = Recycling(VOCAB, pairs=3)
    for first in range(5):
        drafter.evaluated(chain(0, [first, 9], [[1, 2], [first + 10, 3]]))
        assert drafter.pairs == min(first + 1, 3)
    assert [guesses(drafter, [first, 9])[0] for first in range(5)] == [
        *[Guess(14, 0.25)] * 2,
        *(Guess(10 + first, 0.5) for first in (2, 3, 4)),
    ]
    for _ in range(3):
        for context in range(600):
            drafter.evaluated(chain(0, [context % VOCAB, context % 7], [[1, 2], [3, 4]]))
    assert drafter.pairs == 3
    with pytest.raises(OptionError, match="pairs is 0; it must be 1 or more"):
        Recycling(VOCAB, pairs=0)


def test_of_equal_tokens_in_a_pass_that_of_the_text_counts() -> None:
    drafter = Recycling(30)
    drafter.evaluated(Evaluated(0, (8,), (-1,), (0,)))
    drafter.evaluated(Evaluated(1, (7, 9, 9), (-1, 0, 0), (0, 1), top([1, 2], [3, 4], [5, 6])))
    assert tokens(guesses(drafter, [7, 9])) == [3, 4]
    assert tokens(guesses(drafter, [9])) == [3, 4]
    assert tokens(guesses(drafter, [8, 7])) == [1, 2], "the token before the pass is known from the prompt"


class Recorded(Recycling):
    """Writes down after which texts the target was evaluated."""

    def __init__(self) -> None:
        super().__init__(VOCAB)
        self.held: list[int] = []
        self.after: list[list[int]] = []
        self.rejected: list[list[int]] = []

    def evaluated(self, what: Evaluated) -> None:
        super().evaluated(what)
        paths: list[list[int]] = []
        for token, parent in zip(what.tokens, what.parents, strict=True):
            paths.append([*(paths[parent] if parent >= 0 else self.held[: what.start]), token])
        if what.top is not None:
            self.after += paths
            self.rejected += [path for node, path in enumerate(paths) if node not in what.kept]
        self.held[what.start :] = [what.tokens[node] for node in what.kept]


@pytest.mark.parametrize("k", ["2", "8", "whole"])
def test_every_row_of_every_pass_is_kept_by_its_tokens(k: str, clock: Clock) -> None:
    """What follows depends on two tokens here, so a row by other ones would differ: of a rejected token, of a branch,
    and after a prompt that goes back."""
    drafter = Recorded()
    drafters: list[Drafter] = [RuleDrafter(blend(TARGET, OTHER, 0.5)), drafter]
    if k == "whole":
        drafters.insert(0, WrongFirstDrafter(blend(TARGET, OTHER, 0.3)))
    controller = TreeController(drafters, 10) if k == "whole" else CONTROLLERS[k](drafters, clock)
    speaker = engine(ToySession(TARGET, VOCAB), controller)
    for prompt in (PROMPT, [*PROMPT, 9, 9, 9], [7], [*PROMPT, 3, 4], [7, 5], [7, 5]):
        list(speaker.generate(Request(prompt, Sampling(temperature=0.8, seed=4), max_tokens=30)))
    only_rejected = {tuple(text[-2:]) for text in drafter.rejected} - {
        tuple(text[-2:]) for text in drafter.after if text not in drafter.rejected
    }
    assert len(only_rejected) > 20, "this test means nothing if nothing was rejected"
    for text in drafter.after:
        if len(text) > 1:
            best = np.argsort(-TARGET(text))[:3].tolist()
            assert tokens(guesses(drafter, text[-2:], most=3)) == best


def row(context: Sequence[int]) -> Floats:
    return TARGET(context)[:8]


def test_under_match_it_draws_as_the_target_does() -> None:
    drafter, sampling = Recycling(8), Sampling(temperature=0.8, seed=3)
    logits = row([1, 2])
    order = np.argsort(-logits)
    probs = (np.exp(logits) / np.exp(logits).sum())[order]
    drafter.evaluated(Evaluated(0, (1, 2), (-1, 0), (0, 1), Top(np.stack([order, order]), np.stack([probs, probs]))))
    drawn = set()
    for length in range(2, 60):
        context = [*[0] * (length - 2), 1, 2]
        found = guesses(drafter, context, sampling=sampling)
        assert found[0].token == pick(logits, sampling, length)
        assert found[0].confidence == pytest.approx(probs[list(order).index(found[0].token)], rel=1e-2)
        drawn.add(found[0].token)
        for rule in ("rejection", "block"):  # there a guess is a point mass, and must not depend on the noise
            assert guesses(drafter, context, sampling=sampling, rule=rule, most=1)[0].token == order[0]
    assert len(drawn) > 3
    assert guesses(drafter, [1, 2], sampling=Sampling(temperature=1e-30, seed=1))[0].token == order[0]
    assert guesses(drafter, [5, 6], sampling=sampling) == []
