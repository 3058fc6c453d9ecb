"""Trees for tests of sessions, and what a session must be like after them."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np

from edgespec.backends import Model, Session


def paths(parents: Sequence[int]) -> list[list[int]]:
    """The nodes from a root down to each leaf."""
    found = []
    for leaf in range(len(parents)):
        if leaf not in parents:
            path = [leaf]
            while parents[path[0]] >= 0:
                path.insert(0, parents[path[0]])
            found.append(path)
    return found


def dice(seed: int) -> random.Random:
    return random.Random(seed)  # noqa: S311 - no secret


def words(rng: random.Random, n: int) -> list[int]:
    return [rng.randrange(5, 4000) for _ in range(n)]


def grown(rng: random.Random, n: int) -> list[int]:
    """A tree of `n` nodes that is no chain: bushy, slender, or several."""
    kind = rng.choice(["wide", "slender", "any", "forest"])
    if kind == "forest" or n < 3:
        return [-1, *(rng.randrange(-1, node) for node in range(1, n - 1)), -1]
    parents = [-1, 0]
    for node in range(2, n - 1):
        choices = {"wide": rng.choice([0, 0, 1]), "slender": node - 1, "any": rng.randrange(node)}
        parents.append(choices[kind])
    return [*parents, 0]


def same(session: Session, model: Model, text: list[int], rounding: float) -> None:
    """`session` holds `text` and nothing else: what follows is what follows in a session of its own."""
    assert list(session.tokens) == text
    other = model.session(256)
    other.prefill(text)
    for tokens, tree in (([8, 9], None), ([8, 9, 10, 11], (-1, 0, 0, -1)), ([9], None)):
        np.testing.assert_allclose(session.decode(tokens, tree), other.decode(tokens, tree), atol=rounding)
        for each in (session, other):
            each.rollback(len(text))
    other.close()
