"""Lookahead: n-grams that the target makes itself, by Jacobi steps over a window of guessed tokens.

Fu et al. 2024, "Break the Sequential Dependency of LLM Inference Using Lookahead Decoding" (arXiv 2402.02057). The
target's passes compute a window of W columns and N - 1 levels beside the draft (`Passengers`). Level 0 is the last
committed token and a chain of guesses after it; what is in a column below it continues the token above. Each pass moves
all levels up by one, and the likeliest tokens after the last level become the new one. A column and the token after it
are an n-gram of N tokens, which is guessed where its first tokens stand again.

The first passes make the levels; tokens of the text at random stand for what is not known yet. A round that commits
several tokens moves the window like one that commits one, as the authors' implementation does: columns that are then a
few places behind bring more than new ones (docs/drafters/lookahead.md).
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

from ..errors import OptionError
from ..types import Evaluated, Guess, Passengers, Round
from ..verify import RoundContext

_FIRST_TOKENS = 1 << 14  # of n-grams kept, at most


class Lookahead:
    """Guesses by the n-grams whose first tokens are the last ones of the text, those with the longest match first, of
    these the newest. The confidence is the share of the n-gram that matched.

    Args:
        window: columns of the window, W. It has W (N - 1) - 1 passengers.
        length: tokens of an n-gram, N.
        kept: n-grams kept for each first token, the newest, G.

    Raises:
        OptionError: `window` or `length` is below 2, or `kept` below 1.
    """

    name = "lookahead"
    step_price = 0.0
    top = 1

    def __init__(self, window: int = 3, length: int = 3, kept: int = 8) -> None:
        if min(window, length) < 2 or kept < 1:
            raise OptionError(
                f"window is {window}, length {length} and kept {kept}; the first two must be 2 or more, kept 1 or more"
            )
        self._width, self._length, self._kept = window, length, kept
        self._round_context: RoundContext | None = None
        self._clear()

    def _clear(self) -> None:
        #: N-grams by their first token, the newest last.
        self._ngrams: dict[int, dict[tuple[int, ...], None]] = {}
        #: Tokens by level and column. Level 0 begins with the last token of the text, which had `_size` tokens.
        self._levels: list[list[int]] = []
        self._size = 0
        self._offered = Passengers()
        self._random = random.Random(0)  # noqa: S311 - no secret

    @property
    def most_passengers(self) -> int:
        return self._width * (self._length - 1) - 1

    @property
    def ngrams(self) -> Mapping[int, Sequence[tuple[int, ...]]]:
        """The n-grams kept, by their first token, the oldest first."""
        return {first: list(own) for first, own in self._ngrams.items()}

    def begin(self, round_context: RoundContext) -> None:
        self._round_context = round_context

    def guess(self, path: Sequence[int], most: int) -> Sequence[Guess]:
        context = self._round_context
        if context is None or most < 1 or (path and context.is_eog(path[-1])):
            return ()
        longest = self._length - 1
        last = (*context.tokens[-longest:], *path[-longest:])[-longest:]
        found: dict[int, Guess] = {}
        for matched in range(len(last), 0, -1):
            start = last[-matched:]
            for ngram in reversed(self._ngrams.get(start[0], {})):
                if ngram[:matched] == start:
                    token = ngram[matched]
                    found.setdefault(token, Guess(token, matched / self._length))
                    if len(found) == most:
                        return list(found.values())
        return list(found.values())

    def passengers(self, most: int) -> Passengers:
        """The window after the context of the round; nothing if it has more than `most` tokens."""
        context = self._round_context
        self._offered = Passengers()
        if context is None or self.most_passengers > most:
            return self._offered
        if not self._levels or len(context.tokens) < self._size:
            self._levels = [self._any(self._width)]
        self._levels[0][0], self._size = context.tokens[-1], len(context.tokens)
        above = list(range(-1, self._width - 1))  # the last token, and the chain of level 0
        tokens, parents = self._levels[0][1:], above[:-1]
        for level in self._levels[1:]:
            parents += above
            above = [len(tokens) + column for column in range(self._width)]
            tokens = tokens + level
        self._offered = Passengers(tuple(tokens), tuple(parents))
        return self._offered

    def evaluated(self, what: Evaluated) -> None:
        """Keep the n-grams of a pass that computed the window, and move the levels up."""
        n = len(self._offered.tokens)
        if what.top is None or not n or what.tokens[-n:] != self._offered.tokens:
            return
        self._offered = Passengers()
        last = range(len(what.tokens) - self._width, len(what.tokens))
        nodes = [0, *last[1:]] if len(self._levels) == 1 else last
        made = [int(what.top.tokens[node, 0]) for node in nodes]
        if len(self._levels) < self._length - 1:
            self._levels = [[*level[1:], *self._any(1)] for level in (*self._levels, made)]
            return
        for ngram in zip(*self._levels, made, strict=True):
            self._keep(ngram)
        self._levels = [*self._levels[1:], made]

    def observe(self, round: Round) -> None:  # noqa: A002
        """Nothing to do: `evaluated` gets all rows."""

    def close(self) -> None:
        self._clear()

    def _any(self, n: int) -> list[int]:
        """Some tokens of the text."""
        return self._random.choices(self._round_context.tokens, k=n) if self._round_context else []

    def _keep(self, ngram: tuple[int, ...]) -> None:
        own = self._ngrams.pop(ngram[0], {})
        own.pop(ngram, None)
        own[ngram] = None
        if len(own) > self._kept:
            del own[next(iter(own))]
        self._ngrams[ngram[0]] = own
        if len(self._ngrams) > _FIRST_TOKENS:
            del self._ngrams[next(iter(self._ngrams))]
