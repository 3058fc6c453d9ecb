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

_CHAIN = tuple(range(-1, 511))  # the parents of the longest chain that one pass of any engine takes


class Distribution(NamedTuple):
    """A probability distribution over the tokens that are left after filtering.

    `tokens` int64 [c], each at most once; `probs` float64 [c], positive, summing to 1.
    """

    tokens: Ints
    probs: Doubles

    @classmethod
    def point(cls, token: int) -> Distribution:
        """All of it on one token."""
        return cls(np.array([token], dtype=np.int64), np.ones(1))

    def of(self, token: int) -> float:
        """The probability of `token`; 0 where it was filtered out."""
        return float(self.probs[self.tokens == token].sum())


class Top(NamedTuple):
    """The likeliest tokens after each of n evaluated ones, by the model's own logits, the likeliest first.

    `tokens` int64 [n, m]; `probs` float64 [n, m], of all tokens.
    """

    tokens: Ints
    probs: Doubles


class Evaluated(NamedTuple):
    """Tokens that the target evaluated, in one pass or as a prompt.

    `start` is the length of the text before them. `parents` are as in a draft, -1 for that text; `kept` are the nodes,
    from a root down, that became part of the text. What was told before of places from `start` on is out of date.
    `top` is what may follow each token, None for a prompt, which has no logits, or where nobody asks for it.
    """

    start: int
    tokens: tuple[int, ...]
    parents: tuple[int, ...]
    kept: tuple[int, ...]
    top: Top | None = None


class Guess(NamedTuple):
    """A drafter's guess of one token.

    `confidence` in [0, 1] is the drafter's own feature: a model's probability, a look-up's match strength. It need not
    be calibrated; the controller does that. Where tokens are drawn to be judged by `q`, it is the probability of the
    likeliest token, for it must not depend on the token drawn (see `Verifier.trims`). `q` is what the token was drawn
    from; None for a point mass.
    """

    token: int
    confidence: float
    q: Distribution | None = None


@dataclass(frozen=True, slots=True)
class Draft:
    """A tree of guessed tokens to follow the committed context.

    `drafters[i]` names who guessed node i, with a plus sign between two that agree. `q[i]` is the distribution that
    token i was drawn from; no `q` means point masses (a look-up, or greedy drafting).
    """

    tokens: tuple[int, ...] = ()
    parents: tuple[int, ...] = ()
    drafters: tuple[str, ...] = ()
    q: tuple[Distribution, ...] | None = None

    def __len__(self) -> int:
        return len(self.tokens)

    @classmethod
    def chain(cls, tokens: Sequence[int], drafter: str, q: Sequence[Distribution] | None = None) -> Draft:
        """Each token the child of the one before."""
        parents = tuple(range(-1, len(tokens) - 1))
        return cls(tuple(tokens), parents, (drafter,) * len(tokens), tuple(q) if q is not None else None)

    @property
    def is_chain(self) -> bool:
        return self.parents == _CHAIN[: len(self.parents)]

    def children(self, node: int) -> Iterator[int]:
        """The nodes whose parent is `node` (-1: the context), in order."""
        return (child for child, parent in enumerate(self.parents) if parent == node)


@dataclass(frozen=True, slots=True)
class Acceptance:
    """What verification made of a draft: the accepted nodes from the root down, and the token after them.

    `token` is the bonus token where a leaf was reached, else the correction.
    """

    path: tuple[int, ...]
    token: int


@dataclass(frozen=True, slots=True)
class Round:
    """One verify pass and what it brought.

    `draft` is what was bought, `path` its accepted nodes. `tokens` are those committed: the accepted, then the bonus
    or correction, cut where the text ended. `held` is how many tokens the target's cache held before.
    `draft_seconds` is what choosing the draft took, drafting included.
    """

    draft: Draft
    path: tuple[int, ...]
    tokens: tuple[int, ...]
    verify_seconds: float
    draft_seconds: float = 0.0
    held: int = 0

    @property
    def width(self) -> int:
        """Tokens in the target's pass."""
        return 1 + len(self.draft)
