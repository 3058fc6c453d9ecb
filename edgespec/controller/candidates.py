"""The guesses of a round, merged into one tree of which everything is verified.

Equal guesses at one place share a node, as in SpecInfer (Miao et al. 2024, arXiv 2305.09781), if neither was drawn from
a distribution. A drawn token always has a node of its own. Merged with an equal one, x would be tested by one
distribution q while it is drafted more often than q says: a point guess of x that shares its node with an x drawn from
q gives P(x) = min(p, q) + (1 - q) p instead of p. Siblings are in the order in which their drafters were asked, which
must not depend on tokens; then the residuals in turn are lossless (`Rejection`, `Block`).
"""

from __future__ import annotations

from ..types import Distribution, Draft, Guess


class Candidates:
    """A draft tree while it grows."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self._parents: list[int] = []
        self._drafters: list[str] = []
        self._q: list[Distribution | None] = []
        self._points: dict[tuple[int, int], int] = {}  # nodes that were not drawn, by parent and token

    def __len__(self) -> int:
        return len(self.tokens)

    def add(self, parent: int, drafter: str, guess: Guess) -> int:
        """The node of a guess of `drafter` below the node `parent`, -1 for the context."""
        node = self._equal(parent, guess)
        if node is not None:
            self._drafters[node] += f"+{drafter}"
            return node
        node = len(self.tokens)
        if guess.q is None:
            self._points[parent, guess.token] = node
        self.tokens.append(guess.token)
        self._parents.append(parent)
        self._drafters.append(drafter)
        self._q.append(guess.q)
        return node

    def path(self, node: int) -> list[int]:
        """The tokens from the context's end to `node`."""
        path = []
        while node >= 0:
            path.append(self.tokens[node])
            node = self._parents[node]
        return path[::-1]

    def draft(self) -> Draft:
        """All nodes."""
        drawn = any(q is not None for q in self._q)
        q = tuple(q or Distribution.point(token) for q, token in zip(self._q, self.tokens, strict=True))
        return Draft(tuple(self.tokens), tuple(self._parents), tuple(self._drafters), q if drawn else None)

    def _equal(self, parent: int, guess: Guess) -> int | None:
        """The node that `guess` shares; None if it takes one of its own."""
        return self._points.get((parent, guess.token)) if guess.q is None else None
