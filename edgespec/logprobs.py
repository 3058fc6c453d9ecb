"""Log probabilities of an answer's tokens, by the target's logits before any filter of `Sampling`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from .sampling import likeliest
from .types import Floats


class Alternative(NamedTuple):
    """A token that might have been chosen.

    Args:
        token: the token.
        piece: its bytes, possibly an incomplete character; empty for special tokens.
        logprob: the natural logarithm of its probability, -inf where that is 0.
    """

    token: int
    piece: bytes
    logprob: float


class TokenLogprobs(NamedTuple):
    """A token of the answer, with the fields of `Alternative`, and the likeliest tokens at its place.

    The probabilities are those of the model itself at temperature 1: sampling options and grammars do not change them.

    Args:
        top: the likeliest tokens, the likeliest first; the token itself is among them only if it is one of these.
    """

    token: int
    piece: bytes
    logprob: float
    top: tuple[Alternative, ...] = ()


def token_logprobs(
    rows: Floats, tokens: Sequence[int], most: int, piece: Callable[[int], bytes]
) -> tuple[TokenLogprobs, ...]:
    """The log probabilities of `tokens`, each by its row of logits.

    Args:
        rows: the target's logits at the places of the tokens, float32 [n, vocabulary].
        most: alternatives of each token; all if the vocabulary is smaller.
        piece: returns the bytes of a token.
    """
    best = likeliest(rows, most).tokens if most else np.empty((len(rows), 0), np.int64)
    found = []
    for row, token, others in zip(rows, tokens, best, strict=True):
        logits = row.astype(np.float64)
        total = logits.max()
        total += np.log(np.exp(logits - total).sum())
        top = tuple(Alternative(each, piece(each), float(logits[each] - total)) for each in others.tolist())
        found.append(TokenLogprobs(token, piece(token), float(logits[token] - total), top))
    return tuple(found)
