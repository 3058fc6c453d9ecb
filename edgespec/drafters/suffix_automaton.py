"""A suffix automaton over token ids, built while the text grows: where else has this been said, and what followed?

Blumer et al. 1985. A state stands for all strings that occur at the same places; its link leads to the longest of
its suffixes that also occurs elsewhere. So the state of a text's end, or the first along its links that anything
ever followed, is the longest suffix that was said before, found without a search. Drafts come from it in SAM
Decoding (Hu et al. 2024) and, by a suffix tree, in SuffixDecoding (Oliaro et al. 2024).

How often `t` followed `w` is how often the state of `wt` occurs: one counter a state, not one a transition, is
enough. A token more adds one to all states along the links from the new end. These are few in real text (4 on the
average, of 80 in the worst seen) but as many as the tokens in "aaaa", so counting stops after `_COUNTED` links; beyond,
counts of the shortest matches of such texts fall short.

Several texts may be read. What begins as an earlier one did is the same text up to where they part, and is
counted once.
"""

from __future__ import annotations

from itertools import islice

_COUNTED = 32

#: A string that occurs in what was read: its state, and its length in tokens. A plain tuple, for speed.
SuffixMatch = tuple[int, int]

NOWHERE: SuffixMatch = (0, 0)


class Automaton:
    """All that was read, by its substrings.

    About 240 bytes and 3 microseconds a token in CPython.
    """

    __slots__ = ("_begins", "_count", "_followed", "_last", "_length", "_link", "_next", "_path", "_size")

    def __init__(self) -> None:
        # By state; 0 is the empty string.
        self._length = [0]  # of its longest string
        self._link = [-1]
        self._last = [-1]  # the token all its strings end with
        self._count = [0]  # occurrences; of the empty string none, for it also stands for what does not occur
        self._followed = [0]  # occurrences that a token followed
        self._begins = bytearray(1)  # whether its longest string is the beginning of a text
        # The only next state, 0 for none; or all of them by token, the newest last. Most states have one.
        self._next: list[int | dict[int, int]] = [{}]
        self._path = [0]  # the states of the present text's beginnings
        self._size = 0

    def __len__(self) -> int:
        """The tokens read, shared beginnings once."""
        return self._size

    def rewind(self, length: int) -> None:
        """Go back to the first `length` tokens of the present text, 0 for a new one; what was read stays read."""
        del self._path[length + 1 :]

    def append(self, token: int) -> None:
        """Read on. Amortised constant time."""
        end = self._path[-1]
        there = self._to(end, token)
        if there and self._length[there] == self._length[end] + 1:
            if self._begins[there]:  # an earlier text began so
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
        """The longest end of the present text that something followed, here or in another text."""
        end = self._path[-1]
        return self._settle(end, self._length[end])

    def step(self, match: SuffixMatch, token: int) -> SuffixMatch:
        """The longest end of `match` and `token` that something followed."""
        state, length = match
        while not (there := self._to(state, token)):
            if not state:
                return NOWHERE
            state = self._link[state]
            length = self._length[state]
        return self._settle(there, length + 1)

    def shorter(self, match: SuffixMatch) -> SuffixMatch:
        """The longest end of `match` that also occurs without the rest of it."""
        state = self._link[match[0]]
        return (state, self._length[state]) if state > 0 else NOWHERE

    def tally(self, match: SuffixMatch, token: int) -> tuple[int, int]:
        """How often `token` followed, and how often anything did."""
        state = match[0]
        return self._count[self._to(state, token)], self._followed[state]

    def followers(self, match: SuffixMatch, most: int) -> list[int]:
        """The `most` tokens that followed last, the newest first; none after no match."""
        if not match[1]:
            return []
        following = self._next[match[0]]
        if isinstance(following, dict):
            return list(islice(reversed(following), most))
        return [self._last[following]] if following else []

    def _to(self, state: int, token: int) -> int:
        """The state of a string of `state` and `token`; 0 where it does not occur."""
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
        """A state for a text never read before."""
        state = self._new(self._length[end] + 1, token)
        while end >= 0 and not (there := self._to(end, token)):
            self._set(end, token, state)
            end = self._link[end]
        if end >= 0:
            exact = self._length[there] == self._length[end] + 1
            self._link[state] = there if exact else self._split(end, token, there)
        return state

    def _split(self, end: int, token: int, there: int) -> int:
        """A state of its own for the shorter strings of `there`, which now occur where the longer do not."""
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
        """`token` followed all ends of the text up to `end`; all ends of that up to `state` occur once more."""
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
