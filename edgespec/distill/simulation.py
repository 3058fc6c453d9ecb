"""Acceptance of a draft on answers that are known, and the speedup that follows at the prices of a machine.

A chain of guesses is verified up to its first wrong token, so all guesses that count were made after the target's own
text: one pass of the draft over an answer says which would have been right, and rounds can be replayed without the
target. At temperatures above 0 this counts the draft's likeliest token against the one that was sampled, which is less
than what noise shared by both accepts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..tools.draft_value import DEPTH, DraftValue


def by_depth(right: Sequence[bool], k: int = DEPTH) -> list[tuple[int, int]]:
    """For each depth from 1 on, the tokens tested and accepted in rounds with `k` drafted tokens.

    Args:
        right: for each token of an answer, whether the draft guesses it.
    """
    counts, at = [[0, 0] for _ in range(k)], 0
    while at < len(right):
        drafted = right[at : at + k]
        run = next((depth for depth, each in enumerate(drafted) if not each), len(drafted))
        for depth in range(min(run + 1, len(drafted))):
            counts[depth][0] += 1
            counts[depth][1] += depth < run
        at += run + 1
    return [(tried, accepted) for tried, accepted in counts]


def simulated(answers: Iterable[Sequence[bool]], prices: DraftValue) -> DraftValue:
    """The value of a draft that guesses these tokens of answers right, at the prices of `prices`."""
    value = DraftValue((), prices.curve, prices.step)
    for right in answers:
        value = value.with_depths(by_depth(right), len(right))
    return value


def score(value: DraftValue) -> tuple[float, float]:
    """By what two drafts are compared: the speedup, and where that is the same, as where no draft pays on this machine,
    the mean accepted length of long drafts."""
    return (value.best.speedup, value.length(DEPTH))
