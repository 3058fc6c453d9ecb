"""Look-up: what followed when this was said before, in this text or an earlier one.

Prompt lookup (Saxena 2023; Yang et al. 2023) by a suffix automaton, as in SAM Decoding (Hu et al. 2024). Costs
microseconds. How sure a guess is comes from blending the longest match with the next shorter one, as prediction by
partial matching does (Cleary and Witten 1984).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..backends import common_prefix
from ..errors import OptionError
from ..types import Guess, Round
from ..verify import RoundContext
from .suffix_automaton import NOWHERE, Automaton, SuffixMatch

_WEIGHED = 2  # tokens that followed a match last, of which the likeliest is guessed; more are no better


class Lookup:
    """Guesses by the longest end of the text that was said before.

    Args:
        min_match: tokens that must match at least. After a single one guesses are bad, and known to be: 1
            loses nothing.
        earlier: texts said before this one, in tokens, the oldest first. They are read at the first `begin`, which
            takes 0.2 seconds for 65536 tokens.
        limit: tokens to hold, about 240 bytes each. When there are more, and more than twice the present text, all
            but the present text is forgotten.

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
        if most > 1:  # what followed the shorter alone is never the likeliest
            tokens += [token for token in self._automaton.followers(shorter, weighed) if token not in tokens]
        guesses = [Guess(token, self._confidence(longest, shorter, token)) for token in tokens]
        if len(guesses) > 1:
            guesses.sort(key=_confidence, reverse=True)
        return guesses[:most]

    def observe(self, round: Round) -> None:  # noqa: A002
        """All it knows is in the context."""

    def close(self) -> None:
        self._earlier.clear()
        self._clear()

    def _clear(self) -> None:
        self._automaton = Automaton()
        #: The present text as the automaton has it.
        self._seen: list[int] = []
        self._matches: dict[tuple[int, ...], SuffixMatch] = {(): NOWHERE}

    def _read(self, text: Sequence[int]) -> None:
        """Read `text` on from where it parts from the one before."""
        seen = len(self._seen)
        # Mostly the text has grown. Comparing all of it costs 3 ns a token and trusts nobody.
        same = seen if text[:seen] == self._seen else common_prefix(self._seen, text)
        self._automaton.rewind(same)
        del self._seen[same:]
        for token in text[same:]:
            self._automaton.append(token)
            self._seen.append(token)

    def _match(self, path: tuple[int, ...]) -> SuffixMatch:
        """The longest match after `path`, step by step: paths grow by a token, and the one before is mostly known."""
        match = self._matches.get(path)
        if match is None:
            match = self._matches[path] = self._automaton.step(self._match(path[:-1]), path[-1])
        return match

    def _confidence(self, longest: SuffixMatch, shorter: SuffixMatch, token: int) -> float:
        """How likely `token` is: its share of what followed the longest match, blended with that of the shorter.

        The shorter weighs as much as 1 + log2(n) occurrences of the longer, divided by its length, where n is how
        often the longer was followed. Both came out of measurements, and neither is sharp.
        """
        share = 0.0
        for match in (shorter, longest) if shorter[1] else (longest,):
            count, followed = self._automaton.tally(match, token)
            backing = followed.bit_length() / match[1]
            share = (count + backing * share) / (followed + backing)
        return min(share, 1.0)  # how often a short match was followed may fall short


def _confidence(guess: Guess) -> float:
    return guess.confidence
