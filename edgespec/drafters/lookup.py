"""Look-up: guesses the tokens that followed an earlier occurrence of the end of the text.

Prompt lookup (Saxena 2023; Yang et al. 2023) with a suffix automaton, as in SAM Decoding (Hu et al. 2024). A guess
takes microseconds. Its confidence blends the statistics of the longest matching suffix with those of the next shorter
one, as prediction by partial matching does (Cleary and Witten 1984).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..backends import common_prefix
from ..errors import OptionError
from ..types import Guess, Round
from ..verify import RoundContext
from .suffix_automaton import NOWHERE, Automaton, SuffixMatch

_WEIGHED = 2  # most recent followers of a match that are compared; more did not improve guesses


class Lookup:
    """Guesses by the longest suffix of the text that occurred before, in this text or in earlier ones.

    Args:
        min_match: the least length of a match in tokens. Guesses after a match of 1 token are poor, but have a low
            confidence, so 1 loses nothing.
        earlier: earlier texts in tokens, the oldest first. They are read at the first `begin`, which takes 0.2 seconds
            for 65536 tokens.
        limit: the most tokens to hold, about 240 bytes each. If there are more, and more than twice the present text,
            all texts but the present one are dropped.

    Raises:
        OptionError: a `min_match` or `limit` below 1.
    """

    name = "lookup"
    step_price = 0.0

    def __init__(self, min_match: int = 1, earlier: Sequence[Sequence[int]] = (), limit: int = 1 << 17) -> None:
        if min(min_match, limit) < 1:
            raise OptionError(f"min_match is {min_match} and limit {limit}; each must be 1 or more")
        self._min_match = min_match
        self._limit = limit
        self._earlier = list(earlier)
        self._is_eog: Callable[[int], bool] = bool
        self._clear()

    def begin(self, round_context: RoundContext) -> None:
        self._is_eog = round_context.is_eog
        for text in self._earlier:
            self._read(text)
        self._earlier.clear()
        self._read(round_context.tokens)
        if len(self._automaton) > max(self._limit, 2 * len(round_context.tokens)):
            self._clear()
            self._read(round_context.tokens)
        self._matches.clear()
        self._matches[()] = self._automaton.here

    def guess(self, path: Sequence[int], most: int) -> Sequence[Guess]:
        if most < 1 or (path and self._is_eog(path[-1])):
            return ()
        longest = self._match(tuple(path))
        if longest[1] < self._min_match:
            return ()
        shorter = self._automaton.shorter(longest)
        if shorter[1] < self._min_match:
            shorter = NOWHERE
        weighed = max(_WEIGHED, most)
        tokens = self._automaton.followers(longest, weighed)
        if most > 1:  # a token that followed only the shorter match is never the likeliest
            tokens += [token for token in self._automaton.followers(shorter, weighed) if token not in tokens]
        guesses = [Guess(token, self._confidence(longest, shorter, token)) for token in tokens]
        if len(guesses) > 1:
            guesses.sort(key=_confidence, reverse=True)
        return guesses[:most]

    def observe(self, round: Round) -> None:  # noqa: A002
        """Nothing to do: `begin` gets all committed tokens."""

    def close(self) -> None:
        self._earlier.clear()
        self._clear()

    def _clear(self) -> None:
        self._automaton = Automaton()
        #: The present text as it was read into the automaton.
        self._seen: list[int] = []
        self._matches: dict[tuple[int, ...], SuffixMatch] = {(): NOWHERE}

    def _read(self, text: Sequence[int]) -> None:
        """Read `text` from the end of its common prefix with the one before."""
        seen = len(self._seen)
        # Mostly the text has only grown. Comparing all of it takes 3 ns per token and relies on no caller.
        same = seen if text[:seen] == self._seen else common_prefix(self._seen, text)
        self._automaton.rewind(same)
        del self._seen[same:]
        for token in text[same:]:
            self._automaton.append(token)
            self._seen.append(token)

    def _match(self, path: tuple[int, ...]) -> SuffixMatch:
        """The longest match after `path`, from the one of the path without its last token, which is mostly known."""
        match = self._matches.get(path)
        if match is None:
            match = self._matches[path] = self._automaton.step(self._match(path[:-1]), path[-1])
        return match

    def _confidence(self, longest: SuffixMatch, shorter: SuffixMatch, token: int) -> float:
        """The probability of `token`: its share of the followers of the longest match, blended with that of the
        shorter.

        The shorter match has a weight of (1 + log2(n)) / length occurrences, where n is the number of occurrences of
        the longer one. The form was chosen by measurements, and is not sensitive.
        """
        share = 0.0
        for match in (shorter, longest) if shorter[1] else (longest,):
            count, followed = self._automaton.tally(match, token)
            backing = followed.bit_length() / match[1]
            share = (count + backing * share) / (followed + backing)
        return min(share, 1.0)  # the counts of short matches may be too low


def _confidence(guess: Guess) -> float:
    return guess.confidence
