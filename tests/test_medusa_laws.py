"""The laws of heads that guess several places from one state: the text's distribution, and planted errors."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from edgespec.backends.toy import ngram_rule
from edgespec.drafters import Target
from edgespec.drafters.block_rows import BlockRows
from edgespec.sampling import distribution
from edgespec.testing import DRAFTER_LAWS, DrafterCase, LawError
from edgespec.types import Floats, Guess

from .helpers import ToldMedusa, ToyHeads

KEEPS = DRAFTER_LAWS["keeps_the_distribution"]


def heads(target: Target, top: int = 2) -> ToldMedusa:
    """Heads that know another language, and name only the likeliest tokens of it."""
    vocab = target.vocabulary.size
    return ToldMedusa(ToyHeads(ngram_rule(vocab, order=1, seed=2, sharpness=1.0), 3, top), vocab, 0.1)


class Wrong(BlockRows):
    """Gives another q with a token than that which it was drawn from."""

    def guess(self, path: Sequence[int], most: int) -> Sequence[Guess]:
        (guess,) = super().guess(path, most)
        if guess.q is None:
            return (guess,)
        q = distribution(self.other(len(path)), self._round_context.sampling, ())
        return (guess._replace(q=q if q.of(guess.token) > 0 else guess.q),)

    def other(self, depth: int) -> Floats:
        raise NotImplementedError


class OfTheFirstHead(Wrong):
    def other(self, depth: int) -> Floats:
        return self._rows[0]


class OfAllTokens(Wrong):
    """As if the tokens that a head does not name had been left out after q was taken."""

    def other(self, depth: int) -> Floats:
        row = self._rows[depth]
        return np.where(np.isfinite(row), row, np.nanmin(row[np.isfinite(row)]) - 0.5).astype(np.float32)


class Likeliest(BlockRows):
    """Guesses the likeliest token, and says that it was drawn."""

    def guess(self, path: Sequence[int], most: int) -> Sequence[Guess]:
        (guess,) = super().guess(path, most)
        if guess.q is None:
            return (guess,)
        return (guess._replace(token=int(self._rows[len(path)].argmax())),)


@pytest.mark.parametrize("top", [1, 2, 3])
def test_the_distribution_is_kept_exactly(top: int) -> None:
    """By enumeration of all outcomes of a round under `rejection` and `block`, also where heads name few tokens."""
    case = DrafterCase(lambda target: heads(target, top))
    KEEPS(case)
    assert case.guesses > 0


@pytest.mark.parametrize("error", [OfTheFirstHead, OfAllTokens, Likeliest])
def test_planted_errors_are_seen(error: type[BlockRows], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edgespec.drafters.medusa.BlockRows", error)
    with pytest.raises(LawError, match="has the probability"):
        KEEPS(DrafterCase(heads))
