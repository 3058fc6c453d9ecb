"""Constraints: which tokens may follow a text, by a grammar.

The target's distribution p is that after the mask: a token that the constraint does not allow has a logit of -inf
before bias, penalties, temperature and filters. Every verifier preserves this p, so speculation is lossless with
respect to plain decoding under the same constraint. Only the rows that a verifier visits are masked.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from .types import Draft, Floats

Mask = npt.NDArray[np.bool_]


class Constraint(Protocol):
    """What a grammar allows after the committed tokens of one answer. Paths are tokens that follow these."""

    def allowed(self, path: Sequence[int] = ()) -> Mask:
        """Which tokens may follow `path`, bool [vocabulary], read-only; at least one.

        End-of-generation tokens are among them where the grammar is satisfied, and only they if it has ended.
        """
        ...

    def admits(self, path: Sequence[int]) -> int:
        """How many tokens of `path`, from its first one, may follow one another."""
        ...

    def forced(self, path: Sequence[int] = ()) -> Sequence[int]:
        """The tokens of the text that must follow `path`, as a tokenizer writes it; empty if there is a choice. The
        grammar may admit other tokens for this text."""
        ...

    def ended(self, path: Sequence[int] = ()) -> bool:
        """Whether nothing may follow `path`."""
        ...

    def commit(self, token: int) -> None:
        """The token after the committed ones.

        Raises:
            GrammarError: the grammar does not allow it, or became too complex.
        """
        ...


class Begins(Protocol):
    """Begins constraints, one for each answer."""

    def begin(self) -> Constraint:
        """A constraint to which nothing was committed."""
        ...


def masked(row: Floats, allowed: Mask) -> Floats:
    """Logits with -inf for all tokens that are not allowed, float32 [vocabulary]. Tokens beyond the mask are not."""
    known = row[: len(allowed)]
    out = np.full_like(row, -np.inf)
    np.copyto(out[: len(known)], known, where=allowed[: len(known)])
    return out


class MaskedRows:
    """The logits of a pass after the mask of a constraint: row 0 follows the context, row 1 + i node i of the draft.

    Each row is masked when it is first read: a verifier reads only those on the path that it visits.

    Args:
        rows: logits, float32 [1 + n, vocabulary].
    """

    def __init__(self, rows: Floats, draft: Draft, constraint: Constraint) -> None:
        self._rows, self._draft, self._constraint = rows, draft, constraint
        self._known: dict[int, Floats] = {}

    def __getitem__(self, index: int, /) -> Floats:
        row = self._known.get(index)
        if row is None:
            path = self._draft.path(index - 1)
            row = self._known[index] = masked(self._rows[index], self._constraint.allowed(path))
        return row
