"""The protocols of a session: one sequence of a loaded model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from ..types import Floats
from .tap import Listener, Wanted


class Session(Protocol):
    """One sequence of a loaded model: its tokens and their KV cache. `edgespec.testing.check_model` tests sessions."""

    #: The width of a row of logits.
    vocab: int
    #: The most tokens that the cache holds.
    context: int
    #: The most tokens of one decode that a rollback should drop, None for any number: dropping more is possible, but
    #: may leave the whole text to be computed again. The first token of a decode should stay.
    reach: int | None
    #: Whether a rollback that drops a part of the last decode leaves the rest of it, and what was owed before it, to be
    #: computed again; see `owed`. If False, a rollback within `reach` costs nothing.
    replays: bool
    #: Passes of one width in a row after which its price has settled. An engine that records a pass as a graph, to
    #: start its kernels faster, launches them one by one in the first pass of another width and records in the second.
    settling: int
    #: Whether `decode` takes trees.
    can_tree: bool
    #: The most leaves of a tree; 0 without trees.
    leaves: int
    #: The most tokens of one decode.
    widest: int
    #: A key for the price of a pass: file, device, threads, engine version.
    identity: str

    @property
    def tokens(self) -> Sequence[int]:
        """The tokens in the cache, in order, without a tree that no rollback has settled."""
        ...

    @property
    def owed(self) -> int:
        """How many of the last `tokens` must be computed again, because a rollback dropped their results: the next pass
        computes them before its own tokens, and is that much wider. 0 for engines that can drop single tokens."""
        ...

    def prefill(self, tokens: Sequence[int]) -> None:
        """Append `tokens` to the cache, in chunks, without logits. Nothing is owed afterwards, also without `tokens`.

        Raises:
            ContextOverflow: the tokens do not fit; nothing was appended.
            Interrupted: the interrupt was set; `tokens` are unchanged, but more of them may be owed.
        """
        ...

    def decode(self, tokens: Sequence[int], tree: Sequence[int] | None = None) -> Floats:
        """Append `tokens` and return the logits after each, float32 [n, vocab], valid until the next call.

        Args:
            tree: the parent of each token, -1 for the cache; parents come before children. Each token attends to the
                cache, its ancestors and itself. A tree needs room for all its tokens. Unless the next call is the
                rollback that keeps a path of it, it is dropped. A tree that is a chain is appended as a chain.

        Raises:
            EngineError: more than `widest` tokens or `leaves` leaves, or a tree if `can_tree` is False.
            ContextOverflow, Interrupted: as `prefill`.
        """
        ...

    def rollback(self, length: int, keep: Sequence[int] = ()) -> None:
        """Drop all but the first `length` tokens and, after them, the nodes `keep` of the last decode.

        It also says that these tokens stay for now, even if none are dropped: a session that must save a state to go
        back to saves that of this length. Call it after every decode whose tokens were judged.

        Args:
            length: tokens to keep; with `keep`, the length at which that decode began.
            keep: a path of the last decode, from the root down.

        Raises:
            RollbackError: there is no such length or path.
        """
        ...

    def close(self) -> None:
        """Free the cache. Further use raises ClosedError."""
        ...


@runtime_checkable
class HiddenRows(Protocol):
    """Further members of a session that gives the hidden states of its tokens."""

    #: Numbers of a row between layers, and how many layers there are; 0 where not known.
    layer_width: int
    layers: int

    def follow(self, layers: Sequence[int], listener: Listener, wanted: Wanted = Wanted.ALL) -> None:
        """Give `listener` the hidden rows of tokens that stay, prompts included; the session must be empty.

        A rollback says what stays of a decode; where the next call is another, all of a chain stays and nothing of a
        tree. After a rollback beyond the last decode, the row of the last token left is computed again by the next
        pass (`Session.owed`) if all are wanted.

        Args:
            layers: the rows of a token are the inputs of these layers, side by side, from 0 as llama.cpp counts them;
                `FINAL` is the state from which logits are computed.
            wanted: of which tokens.

        Raises:
            OptionError: a layer whose rows this engine does not give for this model; `exact` was requested.
            MissingPackage: the installed version of the engine does not give them.
            EngineError: the engine gives no rows; the session holds tokens.
        """
        ...


@runtime_checkable
class KeepingSession(Protocol):
    """Further members of a session that keeps texts when it goes on with others, as conversations in turn."""

    def kept(self, tokens: Sequence[int]) -> int:
        """How many tokens at the beginning of `tokens` a kept text has: these need not be computed."""
        ...

    def resume(self, tokens: Sequence[int]) -> None:
        """Before the session is rolled back to what it has in common with `tokens`: keep its text if that drops much of
        it, and hold the kept text that has more in common with `tokens`, if there is one."""
        ...
