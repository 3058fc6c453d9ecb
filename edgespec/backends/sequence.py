"""The part of a session that all engines share: the tokens held, checks of arguments, and a pending tree."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from ..errors import ClosedError, ContextOverflow, EngineError, Interrupted
from ..types import Floats
from . import MOST_OWED
from .tap import FOLLOWERS, Listener, RowFollower, RowSource, Wanted
from .tree_layout import Branches, is_chain, kept_length


class SequenceCache(ABC):
    """A session without its passes; a subclass per engine adds them and the other members of `Session`.

    If a pass raises, the engine's cache must be unchanged, except that it may hold fewer tokens (`_computed`).

    Args:
        vocab: the width of a row of logits.
        context: the most tokens of text.
    """

    reach: int | None = None
    replays: bool = False
    settling: int = 0
    can_tree: bool
    leaves: int
    widest: int
    layer_width = 0
    layers = 0
    _owes = False  #: whether passes may begin with owed tokens, for which `widest` leaves room

    def __init__(self, vocab: int, context: int) -> None:
        self.vocab = vocab
        self.context = context
        self._held: list[int] = []
        self._computed = 0  # of these, the first ones that the engine's cache holds; the others are owed
        self._last = 0  # tokens held when the last decode began
        self._end = 0  # tokens held when the present call, or the last one, is done
        self._pending: tuple[Branches, Sequence[int]] | None = None  # a tree of which no rollback has kept a path yet
        self._closed = False
        self._followers: list[tuple[RowSource, RowFollower]] = []
        self._rows_of_tree: list[Floats] = []  # of the last tree, for each follower

    @property
    def tokens(self) -> Sequence[int]:
        return self._held

    @property
    def owed(self) -> int:
        return len(self._held) - self._computed

    def prefill(self, tokens: Sequence[int]) -> None:
        start = len(self._held)
        self._prepare(tokens)
        self._recompute(MOST_OWED if tokens else 0)
        try:
            while left := tokens[len(self._held) - start :]:
                self._append(left[: self._chunk()], logits=False)
        except (EngineError, Interrupted):
            self.rollback(start)
            raise
        self._last = len(self._held)
        self._stays()

    def decode(self, tokens: Sequence[int], tree: Sequence[int] | None = None) -> Floats:
        if len(tokens) > self.widest:
            raise EngineError(f"one decode takes at most {self.widest} tokens, not {len(tokens)}; prefill the rest")
        self._prepare(tokens)
        chain = tree is None or (is_chain(tree) and len(tree) == len(tokens))
        self._recompute(MOST_OWED if chain else 0)
        self._last = len(self._held)
        if tree is None or chain:
            self._append(tokens, logits=True)
        else:
            branches = self._branches(tokens, tree)
            self._pass_tree(tokens, branches)
            self._pending = branches, list(tokens)
            self._rows_of_tree = [rows(len(tokens)).copy() for rows, _ in self._followers]
        return self._logits(len(tokens))

    def rollback(self, length: int, keep: Sequence[int] = ()) -> None:
        self._require_open()
        if self._pending is not None:
            self._settle(length, keep, *self._pending)
            return
        length = kept_length(len(self._held), self._last, length, keep)
        if length < len(self._held):
            self._computed = self._cut_rows(length)
            del self._held[length:]
        self._stays()

    def follow(self, layers: Sequence[int], listener: Listener, wanted: Wanted = Wanted.ALL) -> None:
        """Give `listener` the hidden rows of tokens that stay, prompts included; see `HiddenRows`."""
        self._require_open()
        if self._held or self._pending:
            raise EngineError("rows are given from the first token on: roll this session back to 0 before")
        self._add_follower(self._row_source(tuple(layers), wanted), FOLLOWERS[wanted](listener))

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._free()

    @abstractmethod
    def _chunk(self) -> int:
        """The most tokens of the next pass of a prefill."""

    @abstractmethod
    def _pass_chain(self, tokens: Sequence[int], *, logits: bool) -> None:
        """A pass over what is owed and a chain of `tokens` after the text; the cache then holds them."""

    @abstractmethod
    def _pass_tree(self, tokens: Sequence[int], branches: Branches) -> None:
        """A pass over a tree. Its tokens are not part of the text until `_keep` is called; `_cut` drops them."""

    @abstractmethod
    def _logits(self, n: int) -> Floats:
        """The logits of the last pass, float32 [n, vocab], valid until the next pass."""

    @abstractmethod
    def _keep(self, branches: Branches, path: Sequence[int]) -> None:
        """Append `path` of the last pass's tree to the text, and drop the other nodes."""

    @abstractmethod
    def _cut(self, length: int) -> int:
        """Drop all but the first `length` tokens, and all of a tree; returns how many of these tokens the cache then
        holds. The others are owed. Raises RollbackError if the engine fails."""

    def _recompute(self, most: int) -> None:  # noqa: B027 - most engines never owe tokens
        """Compute owed tokens in passes without logits until at most `most` are owed."""

    def _mark(self) -> None:  # noqa: B027 - nor do they prepare for rollbacks
        """What is held stays for now: rollbacks to this length or beyond should be cheap."""

    def _row_source(self, layers: tuple[int, ...], wanted: Wanted) -> RowSource:  # noqa: ARG002 - engines with rows override it
        """Let passes from now on, or the last one of each call, give the hidden rows of `layers`, side by side."""
        raise EngineError("this engine gives no hidden rows of its layers; use another drafter, or another engine")

    @abstractmethod
    def _free(self) -> None:
        """Free the engine's resources; called once."""

    def _append(self, tokens: Sequence[int], *, logits: bool) -> None:
        self._pass_chain(tokens, logits=logits)
        self._held.extend(tokens)
        self._computed = len(self._held)

    def _add_follower(self, rows: RowSource, follower: RowFollower) -> None:
        self._followers.append((rows, follower))
        if not self._owes and follower.wanted is Wanted.ALL:
            self._leave_room()

    def _leave_room(self) -> None:
        """Let passes begin with owed tokens: a row that is needed again is computed with the next pass."""
        self._owes, self.widest = True, max(1, self.widest - MOST_OWED)

    def _follow(self, start: int, tokens: Sequence[int], *, judged: bool) -> None:
        """The last pass was over a chain of `tokens` from position `start` on."""
        for rows, follower in self._followers:
            if follower.wanted is Wanted.ALL or start + len(tokens) == self._end:
                follower.follow(start, tokens, rows(len(tokens)), judged=judged)

    def _resumed(self) -> int:
        """How many of the tokens held the next pass need not compute, as far as rows are concerned."""
        return min((follower.resumed(len(self._held)) for _, follower in self._followers), default=len(self._held))

    def _cut_rows(self, length: int) -> int:
        """`_cut`, or further, because of rows that are needed again."""
        return self._cut(min((follower.cut(length) for _, follower in self._followers), default=length))

    def _stays(self) -> None:
        """All tokens held stay for now."""
        for _, follower in self._followers:
            follower.settle()
        self._mark()

    def _branches(self, tokens: Sequence[int], tree: Sequence[int]) -> Branches:
        """The layout of `tree` in a pass. Raises EngineError if this session cannot decode it."""
        if not self.can_tree:
            raise EngineError("this session decodes chains only; ask can_tree before giving it a tree")
        if len(tree) != len(tokens):
            raise EngineError(f"a tree of {len(tokens)} tokens has {len(tree)} parents; give each token one")
        branches = Branches(tree)
        if branches.leaves > self.leaves:
            raise EngineError(
                f"a tree of {branches.leaves} leaves; this session takes {self.leaves} (its `leaves`): draft fewer"
            )
        return branches

    def _settle(self, length: int, keep: Sequence[int], branches: Branches, tokens: Sequence[int]) -> None:
        branches.check_kept(self._last, length, keep)
        computed, path = length + len(keep), [tokens[node] for node in keep]
        if keep:
            self._keep(branches, keep)
            for (_, follower), rows in zip(self._followers, self._rows_of_tree, strict=True):
                follower.follow(length, path, rows[list(keep)], judged=True)
        else:
            computed = self._cut_rows(length)
        self._pending, self._rows_of_tree = None, []
        self._held[length:] = path
        self._computed, self._last = computed, len(self._held)
        for _, follower in self._followers:
            follower.settle()

    def _prepare(self, tokens: Sequence[int]) -> None:
        """Before a pass over `tokens`: check them, and drop a pending tree."""
        self._require_open()
        if len(self._held) + len(tokens) > self.context:
            raise ContextOverflow(
                f"{len(self._held)} + {len(tokens)} tokens do not fit the context of {self.context}; a larger --ctx "
                "holds more"
            )
        # Checked here, because kernels of an engine may read out of bounds for an index that is too large.
        if tokens and not (min(tokens) >= 0 and max(tokens) < self.vocab):
            raise EngineError(f"could not decode {list(tokens[:8])}: tokens are from 0 to {self.vocab - 1}")
        if self._pending is not None:
            self.rollback(len(self._held))
        self._end = len(self._held) + len(tokens)

    def _require_open(self) -> None:
        if self._closed:
            raise ClosedError("this session is closed; open another")
