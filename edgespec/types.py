"""The values of one round: guesses, draft trees, acceptance. All are immutable.

A draft is a tree: node i has a token and the index of its parent, -1 for the committed context; parents come before
their children. A chain is a tree in which each node has at most one child.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]  #: logits, [n, vocabulary]
Doubles = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

_CHAIN = tuple(range(-1, 511))  # the parents of the longest chain that one pass of any engine takes


class Distribution(NamedTuple):
    """A probability distribution over the tokens that filters such as top-k keep.

    `tokens` int64 [c], each at most once; `probs` float64 [c], positive, summing to 1.
    """

    tokens: Ints
    probs: Doubles

    @classmethod
    def point(cls, token: int) -> Distribution:
        """The point mass on `token`."""
        return cls(np.array([token], dtype=np.int64), np.ones(1))

    def of(self, token: int) -> float:
        """The probability of `token`; 0 if it was filtered out."""
        return float(self.probs[self.tokens == token].sum())


class Rows(Protocol):
    """Rows of logits by index, each float32 [vocabulary]: an array, or rows that are computed when they are read."""

    def __getitem__(self, index: int, /) -> Floats: ...


class Top(NamedTuple):
    """The m likeliest next tokens after each of n evaluated tokens, by the softmax of the model's logits.

    `tokens` int64 [n, m], the likeliest first; `probs` float64 [n, m], normalised over the whole vocabulary.
    """

    tokens: Ints
    probs: Doubles


class Evaluated(NamedTuple):
    """Tokens that the target evaluated, in one pass or as a prompt.

    Args:
        start: tokens of the context before them. What was reported earlier of positions from `start` on is obsolete.
        tokens: the tokens, by node; passengers come last.
        parents: the parent of each node as in `Draft`, -1 for the context before.
        kept: the nodes that became part of the context, from the root down.
        top: the likeliest next tokens after each node; None for a prompt, which has no logits, or if no drafter asks
            for it.
    """

    start: int
    tokens: tuple[int, ...]
    parents: tuple[int, ...]
    kept: tuple[int, ...]
    top: Top | None = None


class Guess(NamedTuple):
    """A drafter's guess of one token.

    Args:
        token: the token guessed.
        confidence: the drafter's own feature in [0, 1]: a probability of the draft model, or the strength of a match.
            It need not be calibrated; the controller calibrates it. If `q` is given, it is the probability of the
            likeliest token, because it must not depend on the token drawn (see `Verifier.trims`).
        q: the distribution that the token was drawn from; None for a point mass.
    """

    token: int
    confidence: float
    q: Distribution | None = None


class Passengers(NamedTuple):
    """Tokens that the target's pass computes beside the draft, for their rows only: they are neither verified nor
    committed.

    Args:
        tokens: the token of each node.
        parents: the parent of each node among these, -1 for the context.
    """

    tokens: tuple[int, ...] = ()
    parents: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Draft:
    """A tree of guessed tokens that may follow the committed context.

    Args:
        tokens: the token of each node.
        parents: the parent of each node, -1 for the context.
        drafters: the name of the drafter that guessed each node; the names of several that agree are joined by "+".
        q: the distribution that each token was drawn from; None means point masses (look-up, or greedy drafting).
        passengers: tokens for the same pass that are no part of the draft; nothing else here counts them.
    """

    tokens: tuple[int, ...] = ()
    parents: tuple[int, ...] = ()
    drafters: tuple[str, ...] = ()
    q: tuple[Distribution, ...] | None = None
    passengers: Passengers = Passengers()  # noqa: RUF009 - immutable

    def __len__(self) -> int:
        return len(self.tokens)

    @classmethod
    def chain(cls, tokens: Sequence[int], drafter: str, q: Sequence[Distribution] | None = None) -> Draft:
        """A chain: each token is the child of the one before."""
        parents = tuple(range(-1, len(tokens) - 1))
        return cls(tuple(tokens), parents, (drafter,) * len(tokens), tuple(q) if q is not None else None)

    @property
    def is_chain(self) -> bool:
        """Whether each node is the child of the one before, and there are no passengers."""
        return not self.passengers.tokens and self.parents == _CHAIN[: len(self.parents)]

    @property
    def pass_parents(self) -> tuple[int, ...]:
        """The tree of a pass: the last committed token, which is its root, then the draft, then the passengers."""
        first = 1 + len(self)
        drafted = (parent + 1 for parent in self.parents)
        carried = (parent + first if parent >= 0 else 0 for parent in self.passengers.parents)
        return (-1, *drafted, *carried)

    def pass_tokens(self, last: int) -> tuple[int, ...]:
        """The tokens of that pass, where `last` is the last committed one."""
        return (last, *self.tokens, *self.passengers.tokens)

    def path(self, node: int) -> list[int]:
        """The tokens from the root to `node`; none for -1."""
        path = []
        while node >= 0:
            path.append(self.tokens[node])
            node = self.parents[node]
        return path[::-1]

    def children(self, node: int) -> Iterator[int]:
        """The children of `node` (-1: of the context), in order."""
        return (child for child, parent in enumerate(self.parents) if parent == node)


@dataclass(frozen=True, slots=True)
class Acceptance:
    """The result of verifying a draft.

    Args:
        path: the accepted nodes, from the root down.
        token: the token after them: the bonus token if the path ends at a leaf, else the correction.
    """

    path: tuple[int, ...]
    token: int


@dataclass(frozen=True, slots=True)
class Round:
    """One round: a draft, its verification, and the tokens committed.

    Args:
        draft: the draft that was verified.
        path: its accepted nodes.
        tokens: the committed tokens: the accepted ones and the bonus or correction, cut where the text ends.
        verify_seconds: the time of the target's pass.
        draft_seconds: what plain decoding would not have spent, beside the wider pass: to choose the draft with the
            guesses of the drafters, to keep rows for them, and to learn from the round before.
        held: tokens in the target's KV cache before the pass.
        owed: of these, tokens that the pass computed again (`Session.owed`).
        settled: whether passes of this width had come often enough in a row for their price (`Session.settling`).
    """

    draft: Draft
    path: tuple[int, ...]
    tokens: tuple[int, ...]
    verify_seconds: float
    draft_seconds: float = 0.0
    held: int = 0
    owed: int = 0
    settled: bool = True

    @property
    def width(self) -> int:
        """Tokens in the target's pass: those owed, the last committed token, the draft and the passengers."""
        return self.owed + 1 + len(self.draft) + len(self.draft.passengers.tokens)
