"""One sequence of an ONNX model: chains, trees, and passes of padded width."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ..errors import ClosedError, ContextOverflow, EngineError, Interrupted
from ..types import Floats
from . import Interrupt
from .ort_cache import Cache
from .ort_passes import WIDEST, Graph, Passes
from .tree_layout import Branches, is_chain, kept_length


class OrtSession:
    """One sequence of an ONNX model.

    Args:
        context: tokens of text it may hold; the model's positions may not reach so far.
        exact: every pass is padded to a multiple of so many tokens; 0 does not.
        hidden: layers whose output decodes keep, from 0.
    """

    can_rollback = True

    def __init__(
        self, graph: Graph, interrupt: Interrupt, context: int, *, identity: str, exact: int, hidden: Sequence[int] = ()
    ) -> None:
        model = graph.model
        self.vocab = model.vocabulary
        self.identity = identity
        self.context = max(1, min(context, model.context - max(0, exact - 1)))
        self.widest = WIDEST // exact * exact if exact else WIDEST
        self._longest = model.context
        self._exact = exact
        # Room for padding; for a token before a tree that begins the text, else.
        cache = Cache(model, self.context + max(1, exact - 1), graph.dtype, graph.provider)
        self.can_tree = cache.movable and not exact
        self.leaves = WIDEST if self.can_tree else 0
        self._lowest = np.finfo(graph.dtype).min
        self._dtype = graph.dtype
        #: None once closed: it refers to the weights and to the cache.
        self._passes: Passes | None = Passes(graph, cache, interrupt, hidden)
        self._held: list[int] = []
        self._last = 0  # where the last decode began
        self._decoded = 0  # tokens of it, if it was the last call
        self._pending: tuple[Branches, Sequence[int], int] | None = None  # a tree not settled yet, and its first row

    @property
    def tokens(self) -> Sequence[int]:
        return self._held

    @property
    def hidden(self) -> Mapping[int, Floats]:
        """Of the last decode, by layer the residual stream behind it, [n, hidden], float16 or float32, valid until the
        next call. Of the layers asked for when the session was opened."""
        return self._passes.hidden(self._decoded) if self._passes is not None and self._decoded else {}

    def prefill(self, tokens: Sequence[int]) -> None:
        passes = self._check(tokens)
        self._settle()
        self._decoded = 0
        start = len(self._held)
        try:
            while left := tokens[len(self._held) - start :]:
                chunk = passes.widest(len(self._held))
                self._append(passes, left[: chunk // (self._exact or 1) * (self._exact or 1)], logits=False)
        except (EngineError, Interrupted):
            del self._held[start:]
            raise
        self._last = len(self._held)

    def decode(self, tokens: Sequence[int], tree: Sequence[int] | None = None) -> Floats:
        if len(tokens) > self.widest:
            raise EngineError(f"one decode takes at most {self.widest} tokens, not {len(tokens)}; prefill the rest")
        passes = self._check(tokens)
        self._settle()
        self._last = len(self._held)
        if tree is None or (is_chain(tree) and len(tree) == len(tokens)):
            self._append(passes, tokens, logits=True)
        else:
            self._branch(passes, tokens, tree)
        self._decoded = len(tokens)
        return passes.logits(len(tokens))

    def rollback(self, length: int, keep: Sequence[int] = ()) -> None:
        passes = self._opened()
        if self._pending is not None:
            self._keep(passes, length, keep, *self._pending)
            return
        del self._held[kept_length(len(self._held), self._last, length, keep) :]

    def close(self) -> None:
        self._passes = None

    def _append(self, passes: Passes, tokens: Sequence[int], *, logits: bool) -> None:
        """One pass over a chain, as wide as exactness wants."""
        padding = -len(tokens) % self._exact if self._exact else 0
        passes.chain(tokens, len(self._held), width=len(tokens) + padding, logits=logits)
        self._held.extend(tokens)

    def _branch(self, passes: Passes, tokens: Sequence[int], tree: Sequence[int]) -> None:
        """One pass over a tree; its nodes wait beside the text until a rollback says which of them are kept."""
        if not self.can_tree:
            raise EngineError("this ONNX session decodes chains only; ask can_tree before giving it a tree")
        if len(tree) != len(tokens):
            raise EngineError(f"a tree of {len(tokens)} tokens has {len(tree)} parents; give each token one")
        branches = Branches(tree)
        first = len(self._held)
        if not first:
            # GroupQueryAttention takes a pass over an empty cache for a prompt and numbers its tokens itself. So a row
            # that no node sees stands before them.
            if len(tokens) >= self._longest:
                raise ContextOverflow(f"a tree of {len(tokens)} tokens does not fit the context of {self.context}")
            passes.chain(tokens[:1], 0, logits=False)
            first = 1
        bias = np.zeros((len(tokens), first + len(tokens)), self._dtype)
        bias[:, first:][~branches.ancestry()] = self._lowest
        if first > len(self._held):
            bias[:, :first] = self._lowest
        passes.tree(tokens, [len(self._held) + depth for depth in branches.depths], bias)
        self._pending = branches, list(tokens), first

    def _settle(self) -> None:
        """Forget a tree that no rollback asked anything of."""
        if self._pending is not None:
            self.rollback(len(self._held))

    def _keep(
        self,
        passes: Passes,
        length: int,
        keep: Sequence[int],
        branches: Branches,
        tokens: Sequence[int],
        first: int,
    ) -> None:
        branches.check_kept(self._last, length, keep)
        if keep:
            passes.cache.move([first + node for node in keep], length)
        del self._held[length:]
        self._held.extend(tokens[node] for node in keep)
        self._pending = None
        self._last = len(self._held)

    def _check(self, tokens: Sequence[int]) -> Passes:
        passes = self._opened()
        if len(self._held) + len(tokens) > self.context:
            raise ContextOverflow(
                f"{len(self._held)} + {len(tokens)} tokens do not fit the context of {self.context}; a larger --ctx "
                "holds more"
            )
        # Not left to the graph: what an index too large does is its kernels' affair.
        if tokens and not (min(tokens) >= 0 and max(tokens) < self.vocab):
            raise EngineError(f"could not decode {list(tokens[:8])}: tokens are from 0 to {self.vocab - 1}")
        return passes

    def _opened(self) -> Passes:
        if self._passes is None:
            raise ClosedError("this session is closed; open another")
        return self._passes
