"""How trees lie in a pass."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from edgespec.backends.toy import ToySession, ngram_rule
from edgespec.backends.tree_layout import Branches, is_chain
from edgespec.errors import EngineError, RollbackError


def ancestry(parents: Sequence[int], node: int) -> list[int]:
    """From the root down to `node`."""
    return [*(ancestry(parents, parents[node]) if parents[node] >= 0 else []), node]


def forests() -> list[list[int]]:
    rng = random.Random(5)  # noqa: S311 - no secret
    grown = [[rng.randrange(-1, node) for node in range(rng.randrange(1, 30))] for _ in range(200)]
    return [[-1], [-1, -1, -1], [-1, 0, 0, 0], [-1, 0, 1, 0, 3, 3, 1], *grown]


@pytest.mark.parametrize("parents", forests())
def test_a_forest_is_laid_out(parents: list[int]) -> None:
    branches = Branches(parents)
    nodes = range(len(parents))
    leaves = [node for node in nodes if node not in parents]
    assert branches.depths == [len(ancestry(parents, node)) - 1 for node in nodes]
    assert branches.leaves == len(leaves)
    on_path = branches.ancestry()
    assert [[int(other) for other in on_path[node].nonzero()[0]] for node in nodes] == [
        sorted(ancestry(parents, node)) for node in nodes
    ]
    numbers = {leaf: branches.below[leaf].start for leaf in leaves}
    assert sorted(numbers.values()) == list(range(len(leaves))), "each leaf has a number of its own"
    for node in nodes:
        below = {numbers[leaf] for leaf in leaves if node in ancestry(parents, leaf)}
        assert set(branches.below[node]) == below
    for leaf in leaves:
        path = ancestry(parents, leaf)
        assert branches.is_path(path)
        for length in range(len(path) + 1):
            shared = branches.shared(path[:length])
            for other in leaves:
                assert shared[numbers[other]] == len(set(path[:length]) & set(ancestry(parents, other)))


def test_what_is_a_path() -> None:
    branches = Branches((-1, 0, 0, 2, -1))
    for path in ([], [0], [0, 1], [0, 2, 3], [4]):
        assert branches.is_path(path)
    for path in ([1], [0, 3], [0, 1, 2], [2, 3], [0, 0], [4, 0], [0, 2, 3, 4], [5], [-1]):
        assert not branches.is_path(path)


def test_what_is_a_chain() -> None:
    assert is_chain(())
    assert is_chain((-1, 0, 1))
    assert not is_chain((-1, 0, 0))
    assert not is_chain((-1, -1))


@pytest.mark.parametrize("parents", [(0,), (-1, 1), (-1, 2, 0), (-2,)])
def test_parents_come_before_children(parents: tuple[int, ...]) -> None:
    with pytest.raises(EngineError, match="parents come before children"):
        Branches(parents)


def test_the_toy_keeps_paths_only() -> None:
    session = ToySession(ngram_rule(50), 50)
    session.prefill([1, 2])
    for length, keep in [(2, [1]), (2, [0, 2, 3]), (1, [0]), (3, []), (-1, []), (2, [5])]:
        session.decode([3, 4, 5, 6], (-1, 0, 0, 1))
        with pytest.raises(RollbackError):
            session.rollback(length, keep)
        assert list(session.tokens) == [1, 2], "a tree is no text before it is settled"
    session.rollback(2, [0, 1, 3])
    assert list(session.tokens) == [1, 2, 3, 4, 6]
    with pytest.raises(RollbackError):
        session.rollback(2, [0])
