"""Acceptance of a draft on answers that are known, and the speedup that follows at the prices of a machine.

Guesses are verified up to the first wrong one, so all guesses that count were made after the target's own text: a pass
of the draft over an answer says what it would have guessed in a round that begins at any of its tokens, and rounds can
be replayed without the target. At temperatures above 0 this counts the draft's likeliest token against the one that was
sampled, which is less than what noise shared by both accepts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from ..tools.draft_value import DEPTH, DraftValue

#: Of the guesses of rounds that begin at each token of an answer, whether they are right if those before them are:
#: bool [tokens, guesses].
Right = npt.NDArray[np.bool_]


def chained(right: Sequence[bool], k: int = DEPTH) -> Right:
    """The rounds of a draft whose guess of a token does not depend on where the round began, as that of a model does
    not.

    Args:
        right: for each token of an answer, whether the draft guesses it.
    """
    padded = np.concatenate([np.asarray(right, np.bool_), np.zeros(k, np.bool_)])
    return np.lib.stride_tricks.sliding_window_view(padded, k)[: len(right)]


def by_depth(right: Right) -> list[tuple[int, int]]:
    """For each depth from 1 on, the tokens tested and accepted in rounds with as many guesses as there are."""
    counts, at = [[0, 0] for _ in range(right.shape[1])], 0
    while at < len(right):
        drafted = right[at, : len(right) - at].tolist()
        run = next((depth for depth, each in enumerate(drafted) if not each), len(drafted))
        for depth in range(min(run + 1, len(drafted))):
            counts[depth][0] += 1
            counts[depth][1] += depth < run
        at += run + 1
    return [(tried, accepted) for tried, accepted in counts]


def simulated(answers: Iterable[Right], prices: DraftValue) -> DraftValue:
    """The value of a draft with these guesses in answers, at the prices of `prices`."""
    value = DraftValue((), prices.curve, prices.step)
    for right in answers:
        value = value.with_depths(by_depth(right), len(right))
    return value


def score(value: DraftValue) -> tuple[float, float]:
    """By what two drafts are compared: the speedup, and where that is the same, as where no draft pays on this machine,
    the mean accepted length of long drafts."""
    return (value.best.speedup, value.length(min(DEPTH, len(value.curve) - 1)))
