"""How often a drafter's tokens are accepted, learned from what was accepted.

All figures are conditional: the chance that a token is accepted once all before it were. A token behind the first
rejection was never tried and is no evidence.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator

from .types import Asked, Round

_EDGES = (0.15, 0.3, 0.45, 0.6, 0.75, 0.88, 0.96)  # of confidence; finer where a sure model's drafts crowd
_DEEPEST = 7  # depths beyond share one cell


class _Rate:
    """A decayed success rate, shrunk towards a prior."""

    __slots__ = ("_decay", "_hits", "_tries")

    def __init__(self, decay: float) -> None:
        self._decay = decay
        self._hits = 0.0
        self._tries = 0.0

    def add(self, hit: bool) -> None:
        self._hits = self._hits * self._decay + hit
        self._tries = self._tries * self._decay + 1

    def mean(self, prior: float, weight: float) -> float:
        return (self._hits + prior * weight) / (self._tries + weight)


class Calibration:
    """Conditional acceptance per drafter, confidence and depth.

    Three layers, each the prior of the next: the drafter's confidence as it is; what came of that confidence at any
    depth; what came of it at this depth. Apart from these, `expected` keeps what came at each depth whatever the
    confidence: what can be said before a drafter is asked.
    """

    def __init__(self, optimism: float = 0.7) -> None:
        self._optimism = optimism
        self._by_confidence: defaultdict[tuple[str, int], _Rate] = defaultdict(lambda: _Rate(0.99))
        self._by_depth: defaultdict[tuple[str, int, int], _Rate] = defaultdict(lambda: _Rate(0.97))
        self._expected: defaultdict[tuple[str, int], _Rate] = defaultdict(lambda: _Rate(0.92))

    def conditional(self, drafter: str, confidence: float, depth: int) -> float:
        """The chance that a token of this confidence is accepted at `depth` (0: the first), its parents being so."""
        bucket = bisect_right(_EDGES, confidence)
        alike = self._by_confidence[drafter, bucket].mean(confidence, 2.0)
        return self._by_depth[drafter, bucket, min(depth, _DEEPEST)].mean(alike, 6.0)

    def expected(self, drafter: str, depth: int) -> float:
        """The same before the drafter was asked."""
        return self._expected[drafter, min(depth, _DEEPEST)].mean(self._optimism, 2.0)

    def observe(self, round: Round, *, by_text: bool) -> None:  # noqa: A002
        """Learn from a round.

        Args:
            by_text: whether a token equal to the one committed in its place would have been accepted there, bought
                or not. So it is where noise is shared, and then every proposal is evidence. Elsewhere only what was
                bought is.
        """
        for asked in round.asked:
            if by_text:
                tried = _against_text(asked, round.tokens)
            elif asked.draft.drafter == round.draft.drafter:
                tried = _against_path(round)
            else:
                continue
            for depth, (confidence, hit) in enumerate(tried):
                self._add(asked.draft.drafter, confidence, depth, hit)

    def _add(self, drafter: str, confidence: float, depth: int, hit: bool) -> None:
        bucket, depth = bisect_right(_EDGES, confidence), min(depth, _DEEPEST)
        self._by_confidence[drafter, bucket].add(hit)
        self._by_depth[drafter, bucket, depth].add(hit)
        self._expected[drafter, depth].add(hit)


def _against_text(asked: Asked, committed: tuple[int, ...]) -> Iterator[tuple[float, bool]]:
    for token, confidence, said in zip(asked.draft.tokens, asked.draft.confidence, committed, strict=False):
        yield confidence, token == said
        if token != said:
            return


def _against_path(round: Round) -> Iterator[tuple[float, bool]]:  # noqa: A002
    for node, confidence in enumerate(round.draft.confidence):
        yield confidence, node < len(round.path)
        if node >= len(round.path):
            return
