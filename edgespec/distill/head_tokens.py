"""The tokens that a head can guess: those that the target finds likely in its answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from .example import Example

MOST = 1 << 15  #: tokens of a head
_LEAST = 1024  # tokens of a head, or all of a smaller vocabulary
_COVERED = 0.9995  # of the probability in answers
_ROUND = 64  # rows of matrices are a multiple


def likeliest(examples: Sequence[Example], vocabulary: int) -> npt.NDArray[np.int64]:
    """The tokens that have almost all of the target's probability in the answers to train on, ascending, int64 [rows].

    Args:
        vocabulary: the size of the target's.
    """
    mass = np.zeros(vocabulary)
    for each in examples:
        if not each.held_out:
            np.add.at(mass, each.likely.ravel(), np.exp(each.logprobs.astype(np.float64)).ravel())
    order = np.argsort(-mass, kind="stable")
    covering = int(np.searchsorted(np.cumsum(mass[order]), _COVERED * mass.sum())) + 1
    rows = min(vocabulary, MOST, max(_LEAST, -(-covering // _ROUND) * _ROUND))
    return np.sort(order[:rows]).astype(np.int64)


class Numbered:
    """A head's own numbers of the target's tokens, -1 for those that it does not have.

    Args:
        tokens: the target's token of each row of the head, ascending.
    """

    def __init__(self, tokens: npt.NDArray[np.int64], vocabulary: int) -> None:
        self._rows = np.full(vocabulary, -1, np.int64)
        self._rows[tokens] = np.arange(len(tokens))

    def of(self, tokens: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
        """Of an array of tokens of any shape."""
        found: npt.NDArray[np.int64] = self._rows[tokens]
        return found
