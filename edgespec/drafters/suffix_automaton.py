"""A suffix automaton over token ids, built online: finds earlier occurrences of the end of the text.

Blumer et al. 1985. A state represents all strings with the same set of end positions; its suffix link leads to the
longest suffix with further end positions. So the state of the text's end, or the first one on its suffix links that any
token has followed, is the longest suffix that occurred before, without a search. SAM Decoding (Hu et al. 2024) drafts
with a suffix automaton, SuffixDecoding (Oliaro et al. 2024) with a suffix tree.

The number of times that `t` followed `w` is the number of occurrences of the state of `wt`, so one counter per state
suffices. A new token increments all states on the suffix links from the new end. These are few in real text (4 on
average, 80 at most in measurements), but as many as the tokens in "aaaa", so counting stops after `_COUNTED` links;
then the counts of the shortest matches are too low.

Several texts can be read. A common prefix with an earlier text is counted once.
"""

from __future__ import annotations

from itertools import islice

_COUNTED = 32

#: A string that occurs in the texts: its state and its length in tokens. A plain tuple, for speed.
SuffixMatch = tuple[int, int]

NOWHERE: SuffixMatch = (0, 0)


class Automaton:
    """The suffix automaton of all texts read.

    About 240 bytes and 3 microseconds per token in CPython.
    """

    __slots__ = ("_begins", "_count", "_followed", "_last", "_length", "_link", "_next", "_path", "_size")

    def __init__(self) -> None:
        # Lists by state; state 0 is the empty string.
        self._length = [0]  # of the longest string
        self._link = [-1]
        self._last = [-1]  # the last token of all strings of the state
        self._count = [0]  # occurrences; 0 for the empty string, which also stands for strings that do not occur
        self._followed = [0]  # occurrences that a token followed
        self._begins = bytearray(1)  # whether the longest string is a prefix of a text
        # The next state if there is only one, 0 for none; or a dict of them by token, the most recent last.
        self._next: list[int | dict[int, int]] = [{}]
        self._path = [0]  # the states of the prefixes of the present text
        self._size = 0

    def __len__(self) -> int:
        """Tokens read, common prefixes counted once."""
        return self._size

    def rewind(self, length: int) -> None:
        """Continue after the first `length` tokens of the present text, 0 for a new text. Nothing is removed."""
        del self._path[length + 1 :]

    def append(self, token: int) -> None:
        """Read the next token of the present text. Amortised constant time."""
        end = self._path[-1]
        there = self._to(end, token)
        if there and self._length[there] == self._length[end] + 1:
            if self._begins[there]:  # a prefix of an earlier text
                self._path.append(there)
                return
            state = there
        elif there:
            state = self._split(end, token, there)
        else:
            state = self._grow(end, token)
        self._begins[state] = 1
        self._path.append(state)
        self._size += 1
        self._tally(end, token, state)

    @property
    def here(self) -> SuffixMatch:
        """The longest suffix of the present text that any token has followed, in this text or another."""
        end = self._path[-1]
        return self._settle(end, self._length[end])

    def step(self, match: SuffixMatch, token: int) -> SuffixMatch:
        """The longest suffix of `match` plus `token` that any token has followed."""
        state, length = match
        while not (there := self._to(state, token)):
            if not state:
                return NOWHERE
            state = self._link[state]
            length = self._length[state]
        return self._settle(there, length + 1)

    def shorter(self, match: SuffixMatch) -> SuffixMatch:
        """The longest suffix of `match` that has further occurrences."""
        state = self._link[match[0]]
        return (state, self._length[state]) if state > 0 else NOWHERE

    def tally(self, match: SuffixMatch, token: int) -> tuple[int, int]:
        """The number of times that `token` followed `match`, and that any token did."""
        state = match[0]
        return self._count[self._to(state, token)], self._followed[state]

    def followers(self, match: SuffixMatch, most: int) -> list[int]:
        """The `most` tokens that followed `match` most recently, the latest first; none for `NOWHERE`."""
        if not match[1]:
            return []
        following = self._next[match[0]]
        if isinstance(following, dict):
            return list(islice(reversed(following), most))
        return [self._last[following]] if following else []

    def _to(self, state: int, token: int) -> int:
        """The state of a string of `state` plus `token`; 0 if it does not occur."""
        following = self._next[state]
        if isinstance(following, dict):
            return following.get(token, 0)
        return following if self._last[following] == token else 0

    def _set(self, state: int, token: int, there: int) -> None:
        following = self._next[state]
        if isinstance(following, dict):
            following[token] = there
        elif following and self._last[following] != token:
            self._next[state] = {self._last[following]: following, token: there}
        else:
            self._next[state] = there

    def _settle(self, state: int, length: int) -> SuffixMatch:
        while state and not self._followed[state]:
            state = self._link[state]
            length = self._length[state]
        return state, length

    def _new(self, length: int, token: int) -> int:
        self._length.append(length)
        self._link.append(0)
        self._last.append(token)
        self._count.append(0)
        self._followed.append(0)
        self._begins.append(0)
        self._next.append(0)
        return len(self._length) - 1

    def _grow(self, end: int, token: int) -> int:
        """Add a state for a prefix that was not read before."""
        state = self._new(self._length[end] + 1, token)
        while end >= 0 and not (there := self._to(end, token)):
            self._set(end, token, state)
            end = self._link[end]
        if end >= 0:
            exact = self._length[there] == self._length[end] + 1
            self._link[state] = there if exact else self._split(end, token, there)
        return state

    def _split(self, end: int, token: int, there: int) -> int:
        """Add a state for the shorter strings of `there`, which now have an end position that the longer ones have
        not."""
        state = self._new(self._length[end] + 1, token)
        following = self._next[there]
        self._next[state] = following.copy() if isinstance(following, dict) else following
        self._link[state] = self._link[there]
        self._link[there] = state
        self._count[state] = self._count[there]
        self._followed[state] = self._followed[there]
        while end >= 0 and self._to(end, token) == there:
            self._set(end, token, state)
            end = self._link[end]
        return state

    def _tally(self, end: int, token: int, state: int) -> None:
        """Count that `token` followed all suffixes from `end` on, and an occurrence of all suffixes from `state` on."""
        links, followed, count = self._link, self._followed, self._count
        for _ in range(_COUNTED):
            if end <= 0:
                break
            followed[end] += 1
            following = self._next[end]
            if isinstance(following, dict):
                following[token] = following.pop(token)
            end = links[end]
        for _ in range(_COUNTED):
            if state <= 0:
                break
            count[state] += 1
            state = links[state]
