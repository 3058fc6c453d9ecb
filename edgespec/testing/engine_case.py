"""An engine under test, and helpers of its laws."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from ..backends import Model, Session
from ..errors import EdgespecError
from ..types import Floats
from .errors import LawError, require

_LOWEST, _HIGHEST = 5, 4000  # the range of tokens in texts, within the vocabulary


@dataclass(frozen=True)
class EngineCase:
    """An engine under test.

    Args:
        model: a model loaded by the engine, for contexts of 1024 tokens.
        rounding: the tolerance of logits between passes of different widths or shapes.
    """

    model: Model
    rounding: float = 0.0

    @contextmanager
    def session(self, context: int = 512) -> Iterator[Session]:
        opened = self.model.session(context)
        try:
            yield opened
        finally:
            opened.close()

    def words(self, rng: random.Random, n: int) -> list[int]:
        """`n` random tokens."""
        return [rng.randrange(_LOWEST, min(_HIGHEST, self.model.vocabulary.size)) for _ in range(n)]

    def text(self, n: int = 30) -> list[int]:
        """`n` tokens, the same in each call."""
        return self.words(dice(n), n)

    def fresh(self, tokens: Sequence[int]) -> Floats:
        """The logits after each of `tokens`, computed token by token in a new session, float32 [n, vocab]."""
        with self.session() as session:
            return np.concatenate([session.decode([token]).copy() for token in tokens])

    def agree(self, rows: Floats, right: Floats, what: str) -> None:
        """Raises LawError if logits differ by more than `rounding`."""
        require(rows.shape == right.shape, f"{what}: logits of the shape {rows.shape} instead of {right.shape}")
        worst = float(np.abs(rows - right).max())
        require(worst <= self.rounding, f"{what}: logits are off by {worst:g}, and rounding is {self.rounding:g}")

    def holds(self, session: Session, text: Sequence[int]) -> None:
        """Raises LawError unless `session` holds exactly `text`: later passes give the same logits as in a new
        session."""
        require_held(session, text)
        with self.session(session.context) as other:
            other.prefill(text)
            trees = [([8, 9, 10, 11], (-1, 0, 0, -1))] if session.can_tree else []
            passes: list[tuple[list[int], tuple[int, ...] | None]] = [([8, 9], None), *trees, ([9], None)]
            for tokens, tree in passes:
                if len(text) + len(tokens) <= session.context:
                    self.agree(session.decode(tokens, tree), other.decode(tokens, tree), f"{tokens} after a rollback")
                    for each in (session, other):
                        each.rollback(len(text))


def require_held(session: Session, text: Sequence[int]) -> None:
    """Raises LawError unless `session.tokens` is `text`."""
    held = list(session.tokens)
    require(held == list(text), f"the session holds {len(held)} tokens, ... {held[-8:]}, not the {len(text)} it should")


def require_refused(error: type[EdgespecError], what: str, call: Callable[[], object]) -> None:
    """Raises LawError unless `call` raises `error`."""
    try:
        call()
    except error:
        return
    raise LawError(f"{what} is not refused; it must raise {error.__name__}")


def dice(seed: int) -> random.Random:
    """A random number generator."""
    return random.Random(seed)  # noqa: S311 - no secret


def paths(parents: Sequence[int]) -> list[list[int]]:
    """The path from the root to each leaf."""
    found = []
    for leaf in range(len(parents)):
        if leaf not in parents:
            path = [leaf]
            while parents[path[0]] >= 0:
                path.insert(0, parents[path[0]])
            found.append(path)
    return found


def grown(rng: random.Random, n: int) -> list[int]:
    """The parents of a random tree of `n` nodes that is not a chain: wide, slender, or several trees."""
    kind = rng.choice(["wide", "slender", "any", "forest"])
    if kind == "forest" or n < 3:
        return [-1, *(rng.randrange(-1, node) for node in range(1, n - 1)), -1]
    parents = [-1, 0]
    for node in range(2, n - 1):
        choices = {"wide": rng.choice([0, 0, 1]), "slender": node - 1, "any": rng.randrange(node)}
        parents.append(choices[kind])
    return [*parents, 0]
