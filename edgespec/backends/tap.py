"""The tap of a session: hidden rows of tokens, given to those that follow it.

A session has the rows of a pass only until the next one, and some of the tokens are rejected. `Tap` keeps the rows of
a pass until it is known which of its tokens stay, and gives its listener only those; `LastRow` only the last of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from typing import Protocol

from ..types import Floats

FINAL = -1  #: in place of a layer: the state after the last layer and the final norm, from which logits are computed
_KEPT = 4  # rows kept for states that a session saved


class Wanted(Enum):
    """Of which tokens a listener needs the rows.

    ALL: of every token of the text. Where final states come with logits only, prompts are computed with the logits of
    all tokens.
    LAST: of the last token after each call that decodes tokens or computes a prompt. Prompts are computed as without
    a listener but for their end.
    """

    ALL = "all"
    LAST = "last"


class Listener(Protocol):
    """Hears the hidden rows of the tokens of a text, in order, as far as they stay. Its methods must not raise."""

    def heard(self, start: int, tokens: Sequence[int], rows: Floats) -> None:
        """The text has `tokens` from position `start` on.

        Args:
            start: where the last call ended, or the token before that, whose row is then repeated. With `Wanted.LAST`
                the position of the last token, the only one of `tokens`.
            rows: float32 [n, k * width], those of the requested layers side by side; valid during this call.
        """
        ...

    def forget(self, length: int) -> None:
        """The text has only `length` of the tokens that were heard. With `Wanted.ALL` the row of the last of them is
        repeated before further tokens are decoded, because it may be needed with the token that now follows."""
        ...


class RowFollower(Protocol):
    """What a session tells about the rows of its passes. It is told of every pass, or of the last one of each
    call with `Wanted.LAST`, and then what stays of it."""

    wanted: Wanted

    def follow(self, start: int, tokens: Sequence[int], rows: Floats, *, judged: bool) -> None:
        """A pass computed `tokens` from position `start` on. Those before that were not cut stay.

        Args:
            rows: valid during this call.
            judged: whether tokens may be rejected.
        """
        ...

    def cut(self, length: int) -> int:
        """The text has only `length` tokens. Returns after how many of them the session must go on, because of rows
        that are needed again."""
        ...

    def settle(self) -> None:
        """All tokens that were not cut stay."""
        ...

    def resumed(self, length: int) -> int:
        """From which position on the session must compute next, at the latest, to go on after `length` tokens."""
        ...

    def keep(self, length: int) -> None:
        """The session saved its state after `length` tokens, the last ones of which `follow` was just called."""
        ...


#: Gives the rows of the first n tokens of the last pass, float32 [n, width], valid until the next one.
RowSource = Callable[[int], Floats]


class Tap:
    """Gives the rows of tokens that stay to a listener."""

    wanted = Wanted.ALL

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._heard = 0  # tokens of which the listener has, or had, the rows
        self._tokens: list[int] = []  # those after them, which may be rejected
        self._rows: Floats | None = None
        self._last: tuple[int, Floats] | None = None  # the last token heard and its row; None if it was forgotten
        self._kept: dict[int, tuple[int, Floats]] = {}

    def follow(self, start: int, tokens: Sequence[int], rows: Floats, *, judged: bool) -> None:
        self.settle()
        known = self._heard - start
        if known < 0:  # rows are missing: none until a rollback to where there are some
            return
        self._tokens, self._rows = list(tokens[known:]), rows[known : len(tokens)]
        if judged:
            self._rows = self._rows.copy()
        else:
            self.settle()

    def settle(self) -> None:
        if self._tokens and self._rows is not None:
            self._listener.heard(self._heard, self._tokens, self._rows)
            self._heard += len(self._tokens)
            self._last = self._tokens[-1], self._rows[-1].copy()
        self._tokens, self._rows = [], None

    def cut(self, length: int) -> int:
        if length > self._heard or (length == self._heard and (self._last is not None or not length)):
            del self._tokens[length - self._heard :]
            if self._rows is not None:
                self._rows = self._rows[: len(self._tokens)]
            return self._heard + len(self._tokens)
        self._tokens, self._rows = [], None
        self._kept = {at: kept for at, kept in self._kept.items() if at <= length}
        self._listener.forget(length)
        self._heard, self._last = max(0, length - 1), None
        if length in self._kept:
            token, row = self._kept[length]
            self._tokens, self._rows = [token], row[None]
            self.settle()
        return self._heard

    def resumed(self, length: int) -> int:
        return min(length, self._heard + len(self._tokens))

    def keep(self, length: int) -> None:
        if self._heard == length and self._last is not None:
            self._kept[length] = self._last
            while len(self._kept) > _KEPT:
                del self._kept[next(iter(self._kept))]


class LastRow:
    """Gives the row of the last token that stays to a listener. After a rollback there is none until the next pass."""

    wanted = Wanted.LAST

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._heard = 0  # the length of the text up to the token whose row the listener has; 0 if it has none
        self._start, self._tokens = 0, list[int]()  # those of the last pass, which may be rejected
        self._rows: Floats | None = None

    def follow(self, start: int, tokens: Sequence[int], rows: Floats, *, judged: bool) -> None:
        self.settle()
        self._start, self._tokens, self._rows = start, list(tokens), rows.copy() if judged else rows
        if not judged:
            self.settle()

    def settle(self) -> None:
        if (n := len(self._tokens)) and self._rows is not None:
            self._heard = self._start + n
            self._listener.heard(self._heard - 1, self._tokens[-1:], self._rows[n - 1 : n])
        self._tokens, self._rows = [], None

    def cut(self, length: int) -> int:
        del self._tokens[max(0, length - self._start) :]
        if length < self._heard and not self._tokens:
            self._listener.forget(length)
            self._heard = 0
        return length

    def resumed(self, length: int) -> int:
        return length

    def keep(self, length: int) -> None:
        """Nothing is kept: the next pass gives a row."""


FOLLOWERS: dict[Wanted, Callable[[Listener], RowFollower]] = {Wanted.ALL: Tap, Wanted.LAST: LastRow}
