"""A head that reads a token and a hidden row of the token before, beside a session of its target.

It gives the logits of the next token and a row with which it goes on by itself. Most have a KV cache for the pairs of
token and row. The target's rows are lost with its next pass, so the session gives them away after each. Held here, with
`fed` for the number of pairs in the cache of the head:

    tokens[:known]      tokens whose rows came from the target
    rows[0]             the row before position `fed`; zeros at the beginning of the text
    rows[i]             the row of the token at position `fed + i - 1`, so `known = fed + count - 1`

The pairs at the positions from `fed` on are therefore `tokens[fed:]` and `rows`, in order. Without any row (`count` 0),
the one before `fed` must come from the target again.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, chain

import numpy as np

from ..errors import EngineError, Interrupted
from ..types import Floats
from . import common_prefix
from .tap import Wanted

CHUNK = 64  #: tokens of one pass of a head that hears rows as a `Listener`
_MOST_WAITING = 128 << 20  # bytes of rows that wait: some 2,700 tokens of EAGLE-3 for a target of a width of 4096
_KEPT = 4  # rows kept for saved states of the target

_Heard = tuple[int, list[int], Floats]  #: the position of the first token, tokens, their rows


@dataclass(frozen=True, slots=True)
class HeadLimits:
    """The limits of a head.

    Args:
        vocab: tokens of the target.
        context: the most tokens of text.
        width: numbers of a row.
        chunk: the most tokens of one pass.
        shared: whether it reads the KV cache of its target, and therefore has none.
    """

    vocab: int
    context: int
    width: int
    chunk: int
    shared: bool = False


class PairedHead(ABC):
    """A head without its passes, which a subclass for each engine adds.

    The session of the target calls `follow`, `cut` and `keep`, or, through a `Tap`, `heard` and `forget`; a drafter
    calls the other methods.
    """

    wanted = Wanted.ALL
    shift = 0  #: the pair of token p is at position p - shift, and the first `shift` tokens have none

    def __init__(self, limits: HeadLimits) -> None:
        self.vocab, self.context = limits.vocab, limits.context
        self._shared = limits.shared
        self._rows = np.zeros((limits.chunk + 1, limits.width), np.float32)
        self._count, self._fed = 1, 0
        self._tokens: list[int] = []
        self._kept: dict[int, Floats] = {}
        self._chain: list[int] = []  # the last committed token and drafted ones, in the cache after `known` pairs
        self._chain_rows: list[Floats] = []  # the head's own row after each
        self._waiting: list[_Heard] = []  # what was heard and not read yet
        self._bytes = 0  # of its rows

    # --- for the session of the target

    def heard(self, start: int, tokens: Sequence[int], rows: Floats) -> None:
        """See `Listener`. Rows wait until the head is asked: it may never be, and the controller expects a drafter to
        read what is new when it is asked."""
        self._waiting.append((start, list(tokens), rows.copy()))
        self._bytes += rows.nbytes
        while self._bytes > _MOST_WAITING and self._catch_up(CHUNK):
            pass

    def forget(self, length: int) -> None:
        """See `Listener`."""
        left = [(start, length - start, tokens, rows) for start, tokens, rows in self._waiting if start < length]
        self._wait([(start, tokens[:n], rows[:n]) for start, n, tokens, rows in left])
        self.cut(length)

    def _catch_up(self, least: int | None = None) -> bool:
        """Read the rows that wait, or the oldest ones, of at least so many tokens. Those that cannot be read go on
        waiting, and the answer is False."""
        counts = accumulate(len(tokens) for _, tokens, _ in self._waiting)
        end = len(self._waiting) if least is None else 1 + sum(count < least for count in counts)
        waiting, later = _joined(self._waiting[:end]), self._waiting[end:]
        self._wait(later)
        for n, (start, tokens, rows) in enumerate(waiting):
            if not self._take(start, tokens, rows):
                self._wait(waiting[n:] + later)
                return False
        return True

    def _wait(self, heard: list[_Heard]) -> None:
        self._waiting, self._bytes = heard, sum(rows.nbytes for *_, rows in heard)

    def _take(self, start: int, tokens: Sequence[int], rows: Floats) -> bool:
        """Read rows as they were heard, and follow; False if they could not be read. Then `follow` gets no rows from
        there on, until they are heard again."""
        for at in range(0, len(tokens), CHUNK):
            read = self._read(rows[at : at + CHUNK])
            if read is None:
                return False
            self.follow(start + at, tokens[at : at + CHUNK], read, judged=True)
        return True

    def follow(self, start: int, tokens: Sequence[int], rows: Floats, *, judged: bool) -> None:
        """The target computed `tokens` from position `start` on, with these rows.

        Args:
            rows: valid during this call.
            judged: whether tokens may be rejected. Others are computed by the head at once.
        """
        known = len(self._tokens)
        if start > known:  # rows are missing: no drafts until a rollback to where there are some
            return
        tokens, rows = tokens[known - start :], rows[known - start :]
        self._drop_chain(0)
        if self._count + len(tokens) > len(self._rows) and not self._feed():
            return
        self._rows[self._count : self._count + len(tokens)] = rows
        self._count += len(tokens)
        self._tokens.extend(tokens)
        if not judged:
            self._feed()

    def cut(self, length: int) -> int:
        """The text has only `length` tokens. Returns after how many of them the target must go on so that the head can
        follow: one fewer where the row of the last one is not known any more."""
        known = len(self._tokens)
        if length >= known and self._count:
            return length
        self._drop_chain(0)
        self._kept = {at: row for at, row in self._kept.items() if at <= length}
        if length >= self._fed:
            self._count = min(self._count, length - self._fed + 1)
        else:
            self._remove(length)
            self._fed, self._count = length, 1
            if length in self._kept:
                self._rows[0] = self._kept[length]
            elif length:
                self._count = 0
            else:
                self._rows[0] = 0
        del self._tokens[max(0, self._fed + self._count - 1) :]
        return len(self._tokens)

    def settle(self) -> None:  # noqa: B027 - part of `RowFollower`
        """Nothing to do: rows of tokens that may be rejected are dropped by `cut`."""

    def resumed(self, length: int) -> int:
        """From which position on the target must compute next, at the latest, to go on after `length` tokens."""
        return length if self._count else min(length, len(self._tokens))

    def keep(self, length: int) -> None:
        """The target saved its state after `length` tokens, the last ones of which `follow` was just called."""
        if self._count and len(self._tokens) == length:
            self._kept[length] = self._rows[self._count - 1].copy()
            while len(self._kept) > _KEPT:
                del self._kept[next(iter(self._kept))]

    # --- for the drafter

    def follows(self, context: Sequence[int]) -> bool:
        """Whether the head can draft after `context`: it has the row of every token but the last one."""
        self._catch_up()
        known = len(self._tokens)
        return self._count > 0 and self.shift <= known == len(context) - 1 and self._tokens == list(context[:-1])

    def logits(self, last: int, path: Sequence[int]) -> Floats:
        """The logits after the text, its last token and `path`, float32 [vocab], valid until the next call.

        Raises:
            EngineError: the engine failed.
            Interrupted: the interrupt was set.
        """
        self._catch_up()
        wanted = [last, *path]
        same = min(common_prefix(self._chain, wanted), len(wanted) - 1)
        self._drop_chain(same)
        for i in range(same, len(wanted)):
            self._step(wanted[i], logits=i == len(wanted) - 1)
        return self._logits()

    # --- passes

    def _step(self, token: int, *, logits: bool) -> None:
        """Compute `token`, after what is held or after the chain."""
        if self._chain:
            tokens, rows = [token], self._chain_rows[-1][None]
        else:
            if self._shared or self._count == len(self._rows):  # a pass has no room for all pairs and the token
                self._compute()
            tokens, rows = [*self._tokens[self._fed :], token], self._rows[: self._count]
        position = len(self._tokens) + (0 if self._shared else len(self._chain))
        start = position - len(tokens) + 1
        self._run(tokens, start, rows, logits=logits or self._shared)
        own = self._own_row()
        if not self._chain:
            self._forget_fed()
        self._chain.append(token)
        self._chain_rows.append(own)

    def _feed(self) -> bool:
        """Compute all pairs that are not in the cache; False if that failed, which leaves them to be computed."""
        try:
            self._compute()
        except (EngineError, Interrupted):
            return False
        return True

    def _compute(self) -> None:
        """Compute all pairs that are not in the cache. Raises as `logits`, and leaves them to be computed."""
        tokens = self._tokens[self._fed :]
        if tokens and not self._shared:
            self._run(tokens, self._fed, self._rows[: len(tokens)], logits=False)
        self._forget_fed()

    def _run(self, tokens: Sequence[int], start: int, rows: Floats, *, logits: bool) -> None:
        """A pass over `tokens` from position `start` of the text on, without those that have no pair."""
        if skipped := max(0, self.shift - start):
            tokens, rows, start = tokens[skipped:], rows[skipped:], start + skipped
        if tokens:
            self._pass(tokens, start, rows, logits=logits)

    def _forget_fed(self) -> None:
        """All pairs are in the cache: only the last row is needed."""
        self._rows[0] = self._rows[self._count - 1]
        self._fed, self._count = len(self._tokens), 1

    def _drop_chain(self, length: int) -> None:
        """Keep only the first `length` tokens of the chain."""
        if len(self._chain) > length:
            self._remove(len(self._tokens) + length)
            del self._chain[length:], self._chain_rows[length:]

    # --- by engine

    def _read(self, rows: Floats) -> Floats | None:
        """What the head reads of the rows heard; None if it cannot be computed."""
        return rows

    @abstractmethod
    def _pass(self, tokens: Sequence[int], start: int, rows: Floats, *, logits: bool) -> None:
        """A pass over one or more `tokens` from position `start` of the text on; the last one has logits or none has.

        Args:
            rows: contiguous, the row before each token.

        Raises:
            EngineError, Interrupted: the cache is as before.
        """

    @abstractmethod
    def _logits(self) -> Floats:
        """The logits of the last pass, float32 [vocab], valid until the next one."""

    @abstractmethod
    def _own_row(self) -> Floats:
        """A copy of the head's own row after the last token of the last pass, float32 [width]."""

    @abstractmethod
    def _remove(self, length: int) -> None:
        """Remove all pairs from position `length` of the text on from the cache."""

    @abstractmethod
    def close(self) -> None:
        """Free the cache. The session of the target must not follow any more."""


def _joined(heard: Sequence[_Heard]) -> list[_Heard]:
    """The same rows in as few parts as possible. A row that was repeated is taken once."""
    runs: list[list[_Heard]] = []
    end = -1
    for start, tokens, rows in heard:
        if runs and start in {end - 1, end}:
            new = end - start
            runs[-1].append((end, tokens[new:], rows[new:]))
        else:
            runs.append([(start, tokens, rows)])
        end = start + len(tokens)
    return [
        (run[0][0], [*chain.from_iterable(tokens for _, tokens, _ in run)], np.concatenate([rows for *_, rows in run]))
        for run in runs
    ]
