"""The words of one round, as frozen values.

A draft is a tree even where today's drafters propose chains: node i holds a token and its parent's
index, -1 for the committed context; parents come before children.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]  #: logits, [n, vocabulary]
Doubles = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


class Distribution(NamedTuple):
    """A probability distribution over the tokens that are left after filtering.

    `tokens` int64 [c], each at most once; `probs` float64 [c], positive, summing to 1.
    """

    tokens: Ints
    probs: Doubles

    def of(self, token: int) -> float:
        """The probability of `token`; 0 where it was filtered out."""
        return float(self.probs[self.tokens == token].sum())


@dataclass(frozen=True, slots=True)
class Draft:
    """A tree of guessed tokens to follow the committed context.

    `confidence[i]` in [0, 1] is the drafter's own feature for node i: a model's top-1 probability there, a
    look-up's match strength. It need not be calibrated; the controller does that. `q[i]` is the distribution
    that token i was drawn from; no `q` means point masses (a look-up, or greedy drafting).
    """

    tokens: tuple[int, ...] = ()
    parents: tuple[int, ...] = ()
    confidence: tuple[float, ...] = ()
    q: tuple[Distribution, ...] | None = None
    drafter: str = ""

    def __len__(self) -> int:
        return len(self.tokens)

    @classmethod
    def chain(
        cls,
        tokens: Sequence[int],
        confidence: Sequence[float],
        drafter: str,
        q: Sequence[Distribution] | None = None,
    ) -> Draft:
        """Each token the child of the one before."""
        parents = tuple(range(-1, len(tokens) - 1))
        return cls(tuple(tokens), parents, tuple(confidence), tuple(q) if q is not None else None, drafter)

    @property
    def is_chain(self) -> bool:
        return all(parent == node - 1 for node, parent in enumerate(self.parents))

    def children(self, node: int) -> Iterator[int]:
        """The nodes whose parent is `node` (-1: the context), in order."""
        return (child for child, parent in enumerate(self.parents) if parent == node)

    def first(self, n: int) -> Draft:
        """The first `n` nodes; a tree still, since parents come before children."""
        if n >= len(self):
            return self
        q = self.q[:n] if self.q is not None else None
        return Draft(self.tokens[:n], self.parents[:n], self.confidence[:n], q, self.drafter)


@dataclass(frozen=True, slots=True)
class Acceptance:
    """What verification made of a draft: the accepted nodes from the root down, and the token after them.

    `token` is the bonus token where a leaf was reached, else the correction.
    """

    path: tuple[int, ...]
    token: int


class Asked(NamedTuple):
    """One drafter asked in one round: what it proposed (bought or not), and what that took."""

    draft: Draft
    #: Passes of a draft model; 0 for a look-up.
    steps: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Round:
    """One verify pass and what it brought.

    `draft` is what was bought, `path` its accepted nodes. `tokens` are those committed: the accepted, then the bonus
    or correction, cut where the text ended. `asked` are all drafters asked in this round.
    """

    draft: Draft
    path: tuple[int, ...]
    tokens: tuple[int, ...]
    verify_seconds: float
    asked: tuple[Asked, ...] = ()

    @property
    def width(self) -> int:
        """Tokens in the target's pass."""
        return 1 + len(self.draft)

    @property
    def draft_seconds(self) -> float:
        return sum(asked.seconds for asked in self.asked)
