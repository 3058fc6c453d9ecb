"""Predicted text: guesses the tokens of a text that the app expects the answer to resemble.

OpenAI's "predicted outputs": an editor that has a file rewritten sends the file, and the parts that do not change are
verified in wide passes. A pointer moves through the predicted text with the answer. Where the answer leaves the text,
the pointer is set again behind the longest suffix of the answer that occurs in the text, found by a suffix automaton as
in SAM Decoding (Hu et al. 2024). Texts are compared by tokens: after an edit that shifts the boundaries of tokens the
pointer is set again at the next token that both have.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import NamedTuple

from ..backends import common_prefix
from ..types import Guess, Round
from ..verify import RoundContext
from .suffix_automaton import NOWHERE, Automaton, SuffixMatch

_SCANNED = 256  # occurrences of a token that are compared in each direction, so that a search takes microseconds


class _Place(NamedTuple):
    """A place in the predicted text after some tokens of the answer.

    Args:
        next: the index of the token to guess; None where the answer has left the text.
        run: how many tokens before it are the last ones of the answer.
        known: the index behind the last token that was guessed right. The next occurrence is searched from here, so
            that a chance match within inserted text does not lead away.
        match: the longest suffix of the answer in the predicted text.
    """

    next: int | None = 0
    run: int = 0
    known: int = 0
    match: SuffixMatch = NOWHERE


class Prediction:
    """Guesses the predicted text of one answer.

    Args:
        tokens: the tokens of the predicted text.
        start: the tokens of the prompt, after which the answer begins.
    """

    name = "prediction"
    step_price = 0.0

    def __init__(self, tokens: Sequence[int], start: int) -> None:
        self._tokens = tuple(tokens)
        self._start = start
        self._automaton = Automaton()
        self._where: dict[int, list[int]] = defaultdict(list)
        for place, token in enumerate(self._tokens):
            self._automaton.append(token)
            self._where[token].append(place)
        self._is_eog: Callable[[int], bool] = bool
        #: The answer as it was read, and the places after 0, 1, ... of its tokens.
        self._seen: list[int] = []
        self._places = [_Place()]
        #: The places of this round by the path to them.
        self._known: dict[tuple[int, ...], _Place] = {}

    def begin(self, round_context: RoundContext) -> None:
        self._is_eog = round_context.is_eog
        answer = round_context.tokens[self._start :]
        same = common_prefix(self._seen, answer)
        del self._seen[same:], self._places[same + 1 :]
        for token in answer[same:]:
            self._places.append(self._after(self._places[-1], (), token))
            self._seen.append(token)
        self._known = {(): self._places[-1]}

    def guess(self, path: Sequence[int], most: int) -> Sequence[Guess]:
        if most < 1 or (path and self._is_eog(path[-1])):
            return ()
        place = self._place(tuple(path))
        if place.next is None or place.next >= len(self._tokens):
            return ()
        return (Guess(self._tokens[place.next], (place.run + 1) / (place.run + 2)),)

    def observe(self, round: Round) -> None:  # noqa: A002
        """Nothing to do: `begin` gets all committed tokens."""

    def close(self) -> None:
        """There is nothing to free."""

    def _place(self, path: tuple[int, ...]) -> _Place:
        """The place after `path`, from that of the path without its last token, which is mostly known."""
        place = self._known.get(path)
        if place is None:
            place = self._known[path] = self._after(self._place(path[:-1]), path[:-1], path[-1])
        return place

    def _after(self, place: _Place, path: Sequence[int], token: int) -> _Place:
        """The place after one more `token`, which comes after the answer and `path`."""
        match = self._automaton.step(place.match, token)
        if place.next is not None and place.next < len(self._tokens) and self._tokens[place.next] == token:
            return _Place(place.next + 1, place.run + 1, place.next + 1, match)
        length = match[1]
        if not length:
            return _Place(None, 0, place.known, match)
        suffix = (*self._seen[-length:], *path, token)[-length:]
        return _Place(self._found(suffix, place.known), length, place.known, match)

    def _found(self, suffix: tuple[int, ...], known: int) -> int | None:
        """The index behind the first occurrence of `suffix` that ends at `known` or later, else behind the last one
        before; None if it is not among those that are compared."""
        ends, length = self._where[suffix[-1]], len(suffix)
        middle = bisect_left(ends, known)
        ahead, behind = ends[middle : middle + _SCANNED], ends[max(0, middle - _SCANNED) : middle]
        for end in (*ahead, *reversed(behind)):
            # The last token of the text has none after it to guess.
            if end + 1 < len(self._tokens) and self._tokens[max(0, end + 1 - length) : end + 1] == suffix:
                return end + 1
        return None
