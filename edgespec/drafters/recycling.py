"""Token recycling: guesses what the target held likely when the last tokens stood there before.

Luo et al. 2024, "Turning Trash into Treasure: Accelerating Inference of Large Language Models with Token Recycling"
(arXiv 2408.08696). A pass of the target has a row of logits for each of its tokens, those of rejected drafts included.
The likeliest tokens of each row are kept by the token before them, as in the paper, and by the two tokens before them,
which are right more often. The paper verifies a fixed tree of 80 nodes; here the controller selects nodes by their
chance and by the price of a pass.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..errors import OptionError
from ..sampling import SHARED, Sampling, gumbel
from ..types import Doubles, Evaluated, Guess, Ints, Round
from ..verify import RoundContext

_KEPT = 8  # likeliest tokens of a row
# Factor of a confidence by one token. At equal probability rows by one token are right half as often as rows by two
# (.53 and .93 where the probability is above .9, in dialogues), and the calibration does not know which it was.
_TRUST = 0.5
_COLDEST = 1e-3  # a lower temperature gives the same tokens


class Recycling:
    """Guesses by the row of the last two tokens, or by that of the last one if there is none. The confidence is the
    probability in that row.

    Under `match` with a temperature above 0 it samples from the row by the noise that the target uses.

    Args:
        vocab: the size of the target's vocabulary. There is a row for each token, of 48 bytes.
        pairs: the most rows by two tokens, some 250 bytes each. The oldest are dropped first.

    Raises:
        OptionError: `pairs` is below 1.
    """

    name = "recycling"
    step_price = 0.0
    top = _KEPT

    def __init__(self, vocab: int, pairs: int = 1 << 16) -> None:
        if pairs < 1:
            raise OptionError(f"pairs is {pairs}; it must be 1 or more")
        self._vocab = vocab
        self._most_pairs = pairs
        self._round_context: RoundContext | None = None
        self._clear()

    @property
    def pairs(self) -> int:
        """The number of rows by two tokens."""
        return len(self._rows)

    def begin(self, round_context: RoundContext) -> None:
        self._round_context = round_context

    def guess(self, path: Sequence[int], most: int) -> Sequence[Guess]:
        context = self._round_context
        if context is None or most < 1 or (path and context.is_eog(path[-1])):
            return ()
        row = self._row((*context.tokens[-2:], *path[-2:])[-2:])
        trust = _TRUST if row < self._vocab else 1.0
        tokens, probs = self._tokens[row], self._probs[row]
        if context.verifier.trims and not context.sampling.greedy:
            tokens, probs = _by_noise(tokens, probs, context.sampling, len(context.tokens) + len(path))
        found = zip(tokens[:most].tolist(), probs[:most].tolist(), strict=True)
        return [Guess(token, trust * prob) for token, prob in found if prob]

    def evaluated(self, what: Evaluated) -> None:
        """Keep the rows of a pass, also those of rejected tokens."""
        start, tokens, parents = what.start, what.tokens, what.parents
        before = self._text[start - 1] if 0 < start <= len(self._text) else None
        self._text[start:] = [tokens[node] for node in what.kept]
        if what.top is None:
            return
        # Rejected tokens first: NumPy assigns in order, so that of equal keys the row of the text is kept.
        nodes = [*set(range(len(tokens))).difference(what.kept), *what.kept]
        rows = [tokens[node] for node in nodes]
        for node in tuple(nodes):
            last = tokens[parents[node]] if parents[node] >= 0 else before
            if last is not None:
                rows.append(self._row_of_pair(last, tokens[node]))
                nodes.append(node)
        self._tokens[rows] = what.top.tokens[nodes]
        self._probs[rows] = what.top.probs[nodes]

    def observe(self, round: Round) -> None:  # noqa: A002
        """Nothing to do: `evaluated` gets all rows."""

    def close(self) -> None:
        self._clear()

    def _clear(self) -> None:
        # Rows by one token, then rows by two. The system gives memory to the rows that are written.
        shape = (self._vocab + self._most_pairs, min(_KEPT, self._vocab))
        self._tokens = np.zeros(shape, np.int32)
        self._probs = np.zeros(shape, np.float16)
        #: The number of the row of two tokens, by `_key`; and these keys, by row.
        self._rows: dict[int, int] = {}
        self._keys: list[int] = []
        self._oldest = 0
        #: The text as far as it was reported.
        self._text: list[int] = []

    def _key(self, first: int, second: int) -> int:
        return first * self._vocab + second

    def _row(self, last: Sequence[int]) -> int:
        """The number of the row to guess by, after the one or two tokens `last`."""
        row = self._rows.get(self._key(*last)) if len(last) > 1 else None
        return last[-1] if row is None else row

    def _row_of_pair(self, first: int, second: int) -> int:
        """The number of the row of two tokens; a new one, or that of the oldest pair, if they have none."""
        key = self._key(first, second)
        row = self._rows.get(key)
        if row is None:
            place = self._oldest
            if len(self._keys) < self._most_pairs:
                place = len(self._keys)
                self._keys.append(key)
            else:
                del self._rows[self._keys[place]]
                self._keys[place] = key
                self._oldest = (place + 1) % self._most_pairs
            row = self._rows[key] = self._vocab + place
        return row


def _by_noise(tokens: Ints, probs: Doubles, sampling: Sampling, position: int) -> tuple[Ints, Doubles]:
    """The tokens of a row and their probabilities, in the order in which the target would sample them there."""
    given = probs > 0
    tokens, probs = tokens[given].astype(np.int64), probs[given].astype(np.float64)
    scores = np.log(probs) / max(sampling.temperature, _COLDEST)
    order = np.argsort(-(scores + gumbel(sampling.seed, position, tokens, SHARED)))
    return tokens[order], probs[order]
