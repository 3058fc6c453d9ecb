"""Drafts in a terminal: what of a tree was rejected, branch by branch."""

from __future__ import annotations

import pytest

from edgespec.terminal.show import rejected_branches
from edgespec.types import Draft


@pytest.mark.parametrize(
    ("parents", "path", "wanted"),
    [
        ((-1, 0, 1), (0, 1, 2), []),
        ((-1, 0, 1), (0,), [[11, 12]]),
        ((-1, -1, -1), (1,), [[10], [12]]),
        ((-1, -1, 0, 1, 2), (), [[11, 13], [10, 12, 14]]),
        ((-1, 0, 0, 0, 2), (0,), [[11], [13], [12, 14]]),
        ((-1, 0, 1, 1), (), [[10, 11, 12], [13]]),
    ],
)
def test_rejected_tokens_are_told_apart_by_branch(
    parents: tuple[int, ...], path: tuple[int, ...], wanted: list[list[int]]
) -> None:
    tokens = tuple(range(10, 10 + len(parents)))
    assert rejected_branches(Draft(tokens, parents, ("lookup",) * len(parents)), path) == wanted
