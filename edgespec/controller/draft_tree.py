"""The draft tree of a round, and the selection of the part to verify.

The best subtree of n nodes is the n likeliest nodes, for a child is never likelier than its parent; so the selection
is one sort (design: Sequoia, Chen et al. 2024, chooses trees by size the same way, but once and for all).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ..types import Distribution, Draft, Guess
from .calibration import Calibration, Cell

# Tokens that a draft must be expected to gain. The chances of what is chosen are too high on the average, for they were
# chosen for being high: 94 drafts expected to bring 55 tokens brought 30 (simulated, the text where nothing pays).
_MARGIN = 0.05


class Trial(NamedTuple):
    """A guess that was tried, and whether it was right."""

    drafter: str
    rank: int
    depth: int
    node: int
    hit: bool


class DraftTree:
    """Guesses of several drafters, merged: equal tokens at the same place share a node."""

    def __init__(self, calibration: Calibration) -> None:
        self.tokens: list[int] = []
        self.parents: list[int] = []
        self.depths: list[int] = []
        self.drafters: list[str] = []
        #: For each node, what is known of guesses like it; of several drafters, the likeliest.
        self.cells: list[Cell] = []
        self._calibration = calibration
        self._q: list[Distribution | None] = []
        #: By parent + 1: the children by token, and who spoke there.
        self._children: list[dict[int, int]] = [{}]
        self._spoke: list[list[tuple[str, int, int]]] = [[]]

    def __len__(self) -> int:
        return len(self.tokens)

    def add(self, parent: int, drafter: str, guesses: Sequence[Guess]) -> list[int]:
        """Add what `drafter` guesses below `parent` (-1: the context); the nodes, in the order of the guesses."""
        children, spoke = self._children[parent + 1], self._spoke[parent + 1]
        nodes = []
        for rank, guess in enumerate(guesses):
            node = children.get(guess.token)
            cell = self._calibration.cell(drafter, rank, guess.confidence)
            if node is None:
                node = children[guess.token] = self._new(parent, guess, drafter, cell)
            else:
                # Also one that was drawn: only one drawn chain is ever bought, and nothing beside it. Where there are
                # several, they need nodes of their own, as in `Candidates`.
                self.drafters[node] += f"+{drafter}"
                self._q[node] = guess.q or self._q[node]
                if cell.value > self.cells[node].value:
                    self.cells[node] = cell
            spoke.append((drafter, rank, node))
            nodes.append(node)
        return nodes

    def children(self, node: int) -> dict[int, int]:
        """The children of `node` by token."""
        return self._children[node + 1]

    def likeliest(self, node: int) -> int | None:
        """The child of `node` that is likeliest to be accepted."""
        cells = self.cells
        return max(self._children[node + 1].values(), key=lambda child: cells[child].value, default=None)

    def line(self, node: int) -> list[int]:
        """The nodes from the context's end to `node`."""
        line = []
        while node >= 0:
            line.append(node)
            node = self.parents[node]
        return line[::-1]

    def path(self, node: int) -> list[int]:
        """The tokens from the context's end to `node`."""
        return [self.tokens[above] for above in self.line(node)]

    def reach(self) -> list[float]:
        """For each node, the chance that it and all above it are accepted."""
        reach: list[float] = []
        for parent, cell in zip(self.parents, self.cells, strict=True):
            reach.append(cell.value * reach[parent] if parent >= 0 else cell.value)
        return reach

    def accepted(self, reach: Sequence[float]) -> list[float]:
        """For each node, how many tokens of the chain to it are expected to be accepted; `reach` is `self.reach()`."""
        accepted: list[float] = []
        for parent, chance in zip(self.parents, reach, strict=True):
            accepted.append(chance + accepted[parent] if parent >= 0 else chance)
        return accepted

    def trials(self, said: Sequence[int], bought: Sequence[int], accepted: int) -> list[Trial]:
        """The guesses that this round proved right or wrong.

        Args:
            said: the tokens that were committed.
            bought: the nodes that were verified; a chain where any of them was drawn from a distribution.
            accepted: how many of these were accepted.
        """
        return [*self._by_text(said), *self._by_path(bought, accepted)]

    def _by_text(self, said: Sequence[int]) -> Iterator[Trial]:
        """Point masses, bought or not: right if the text says the same.

        Every verifier accepts a point mass as often as the target says that token, so the text is a fair judge.
        """
        node: int | None = -1
        for depth, token in enumerate(said):
            if node is None:
                return
            for drafter, rank, child in self._spoke[node + 1]:
                if self._q[child] is None:
                    yield Trial(drafter, rank, depth, child, self.tokens[child] == token)
            node = self._children[node + 1].get(token)

    def _by_path(self, bought: Sequence[int], accepted: int) -> Iterator[Trial]:
        """Tokens drawn from a distribution: right if they were accepted, which says more than the text does."""
        for depth, node in enumerate(bought[: accepted + 1]):
            for drafter, rank, child in self._spoke[self.parents[node] + 1] if self._q[node] is not None else ():
                if child == node:
                    yield Trial(drafter, rank, depth, node, depth < accepted)

    def draft(self, nodes: Sequence[int]) -> Draft:
        """The subtree of `nodes`, which holds every parent of its nodes."""
        if not nodes:
            return Draft()
        order = sorted(nodes)
        place = {node: i for i, node in enumerate(order)}
        drawn = any(self._q[node] for node in order)
        return Draft(
            tuple(self.tokens[node] for node in order),
            tuple(place[self.parents[node]] if self.parents[node] >= 0 else -1 for node in order),
            tuple(self.drafters[node] for node in order),
            tuple(self._q[node] or Distribution.point(self.tokens[node]) for node in order) if drawn else None,
        )

    def _new(self, parent: int, guess: Guess, drafter: str, cell: Cell) -> int:
        self.tokens.append(guess.token)
        self.parents.append(parent)
        self.depths.append(self.depths[parent] + 1 if parent >= 0 else 0)
        self.drafters.append(drafter)
        self.cells.append(cell)
        self._q.append(guess.q)
        self._children.append({})
        self._spoke.append([])
        return len(self.tokens) - 1


class Selection(NamedTuple):
    """Nodes to buy, and what they bring: expected tokens beyond a plain step's, less what the time is worth."""

    nodes: list[int]
    gain: float


def owing(chance: float, reached: float, length: int, debt: Sequence[float]) -> float:
    """What a token adds to the expected debt of a chain of `length` tokens, itself included.

    Args:
        chance: that all tokens before it are accepted.
        reached: that it is accepted, too.
        debt: see `select_chain`.
    """
    return (chance - reached) * debt[length - 1] if debt else 0.0


def select_chain(tree: DraftTree, cost: Sequence[float], debt: Sequence[float] = ()) -> Selection:
    """The best chain from the root; no nodes where a plain step is better.

    Args:
        cost: by the number of tokens drafted, the tokens that a wider pass must bring to be worth its time. Longer
            chains than it knows are not bought.
        debt: by the number of tokens accepted, what it costs to compute them again if the next one is rejected, in
            tokens; empty if nothing must be computed again.
    """
    reach, debts = tree.reach(), list[float]()
    best, gain = -1, _MARGIN
    for node, (parent, accepted) in enumerate(zip(tree.parents, tree.accepted(reach), strict=True)):
        chance, due = (reach[parent], debts[parent]) if parent >= 0 else (1.0, 0.0)
        length = tree.depths[node] + 1
        within = length < len(cost)
        debts.append(due + owing(chance, reach[node], length, debt) if within else due)
        if within and accepted - cost[length] - debts[node] > gain:
            best, gain = node, accepted - cost[length] - debts[node]
    return Selection(tree.line(best), gain) if best >= 0 else Selection([], 0.0)


def select_tree(tree: DraftTree, cost: Sequence[float]) -> Selection:
    """The best subtree, as `select_chain`."""
    reach = tree.reach()
    order = sorted(range(len(reach)), key=reach.__getitem__, reverse=True)
    total = 0.0
    best, gain = 0, _MARGIN
    for n, node in enumerate(order[: len(cost) - 1], 1):
        total += reach[node]
        if total - cost[n] > gain:
            best, gain = n, total - cost[n]
    return Selection(order[:best], gain) if best else Selection([], 0.0)
