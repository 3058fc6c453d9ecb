"""Whether a head in a file of its own belongs to a target, by a sample of their tokens."""

from __future__ import annotations

from collections.abc import Mapping

from . import Labels

_COMPARED = 32  # tokens
_EQUAL = 0.75  # share of them that must be equal: padding at the end has labels of the converter's choice


def sample(vocabulary: Labels) -> dict[int, str]:
    """Some tokens by their labels, evenly spread."""
    step = max(1, vocabulary.size // _COMPARED)
    return {token: vocabulary.label(token) for token in range(step - 1, vocabulary.size, step)}


def is_same(labels: Mapping[int, str], vocabulary: Labels) -> bool:
    """Whether a vocabulary has most of these labels at their places."""
    equal = [token < vocabulary.size and vocabulary.label(token) == label for token, label in labels.items()]
    return sum(equal) >= _EQUAL * len(equal)
