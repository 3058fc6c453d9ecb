"""Expansion of the draft tree of one round: which drafter to ask where, and when to stop."""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

from ..drafters import Drafter
from ..verify import RoundContext
from .draft_tree import DraftTree, Selection, owing, select_chain, select_tree
from .priced_drafter import PricedDrafter

_NODES = 64  # candidates of a round, for each free drafter: siblings must not take the room of long copies
_BRANCHES = 2  # guesses a drafter may make at one place, where trees can be verified
# Tokens that a tree must bring beyond a chain: it leaves the cache out of order, and that moves the last bits of what
# comes after it.
_RELUCTANCE = 0.1
# Of the errors expected of a drafter's guesses after the first, those that a probe expects: where they are taken to be
# too many, drafts of one token are made, and only longer ones can show that.
PROBE_ERRORS = 0.5
_FURTHER = 4  # tokens that a token opens the way to, as far as they are weighed


class Reached(NamedTuple):
    """A place along a chain: its length, the chance to come so far, the tokens expected up to there, and the debt."""

    n: int
    chance: float
    tokens: float
    debt: float = 0.0


class Horizon(NamedTuple):
    """The best chain that a drafter may be expected to guess: its gain, see `Expansion.gain`, and its length."""

    gain: float
    length: int


#: A place to ask at: the chance to come there, negative; the node; the path to it.
Place = tuple[float, int, tuple[int, ...]]


class Passes(NamedTuple):
    """What the target's passes take in a round, in seconds.

    Args:
        curve: a pass by the number of tokens drafted, as far as drafts may go: 0, 1, 2, ...
        trees: what a pass over a tree takes beyond one over a chain; None where only chains can be verified.
        replaying: what the next pass takes longer if a draft is rejected after 0, 1, ... accepted tokens; empty if
            nothing must be computed again.
    """

    curve: Sequence[float]
    trees: float | None = None
    replaying: Sequence[float] = ()


class Expansion:
    """The candidates of one round.

    Args:
        free: drafters without a price of their own; each has begun this round.
        look: seconds that they take at one place.
        passes: what the target's passes take.
        rate: what a second is worth, in tokens, see `value_time`.
    """

    def __init__(
        self,
        tree: DraftTree,
        round_context: RoundContext,
        free: Sequence[Drafter],
        look: float,
        passes: Passes,
        rate: float,
    ) -> None:
        self.tree = tree
        self._passes = passes
        self._look_seconds = look
        self._round_context = round_context
        self._free = free
        self._room = _NODES * max(1, len(free))
        self._trees = passes.trees if round_context.verifier.trims else None
        self._most = 1 if self._trees is None else _BRANCHES
        self._looked: set[int] = set()
        #: The deepest token that was drawn and may not be left out; see `Verifier.trims`.
        self._drawn = -1
        self.value_time(rate)

    @property
    def settled(self) -> bool:
        """Whether tokens were drawn that must be bought: then nobody else may draw."""
        return self._drawn >= 0

    @property
    def looks(self) -> int:
        """Places at which the free drafters were asked."""
        return len(self._looked)

    def value_time(self, rate: float) -> None:
        """Weigh all that takes time as if a second were worth `rate` tokens from now on."""
        self.rate = rate
        self._cost: list[float] = []
        self._cheapest: list[float] = []
        self._debt = [rate * seconds for seconds in self._passes.replaying]
        self._look_price = rate * self._look_seconds
        self._least: dict[int, float] = {}

    @property
    def cost(self) -> list[float]:
        """By the number of tokens drafted, the tokens that the time of such a pass is worth beyond a plain step's."""
        if not self._cost:  # in most rounds without a guess it is never asked for
            curve, rate = self._passes.curve, self.rate
            self._cost = [rate * (seconds - curve[0]) for seconds in curve]
        return self._cost

    def offer(self, plain: float) -> float:
        """Tokens per plain step that the round is expected to bring with the best chain of the tree, or with none.

        Args:
            plain: seconds of a plain step, over one token. The shortest pass of the round may take longer: what a
                rollback left to be computed again is computed in it.
        """
        tree, curve = self.tree, self._passes.curve
        best = plain / curve[0]
        if not tree:
            return best
        for accepted, depth in zip(tree.accepted(tree.reach()), tree.depths, strict=True):
            if depth + 1 < len(curve):
                best = max(best, (1 + accepted) * plain / curve[depth + 1])
        return best

    def extra_seconds(self, drafted: int) -> float:
        """What a pass over so many drafted tokens takes beyond one without a draft."""
        return self._passes.curve[drafted] - self._passes.curve[0]

    def gain(self) -> float:
        """Expected tokens of the best purchase beyond a plain step's, less what its time is worth."""
        return self._best().gain

    def bought(self) -> list[int]:
        """The nodes of the best purchase."""
        if self._drawn >= 0:
            return self._with_all_drawn()
        return sorted(self._best().nodes)

    def ask_free(self) -> None:
        """Ask the free drafters, at the likeliest places first."""
        if not self._free:
            return
        self._grow([(-1.0, -1, ())])

    def prospect(self, priced: PricedDrafter) -> float:
        """Expected tokens over a plain step, less the worth of the time, of the best chain of a drafter's guesses."""
        return self._horizon(priced, Reached(0, 1.0, 0.0)).gain

    def draft(self, priced: PricedDrafter, *, ask: bool, errors: float = 1.0) -> None:
        """Let a drafter go on from the likeliest path for as long as that pays.

        Args:
            ask: whether the first guess is paid for whatever is expected: how sure it is will tell whether to go on.
            errors: of those expected of its guesses after the first of a round, the share that is taken for true.
        """
        without = hand = self.gain()
        tree, node, path = self.tree, -1, list[int]()
        here = Reached(0, 1.0, 0.0)
        while here.n < len(self.cost) - 1 and not (path and self._round_context.is_over(path)):
            self._look(node, path)
            child = tree.likeliest(node)
            if self._may_improve(priced, child, here.n):
                hand = max(hand, here.tokens - self.cost[here.n] - here.debt)
                horizon = self._horizon(priced, here, errors)
                if not ask and horizon.gain <= hand:
                    break
                ask = False
                child = self._guessed(priced, node, path, horizon.length, here.chance)
                if self.settled:
                    hand = -math.inf  # what was drawn must be bought now, so no other draft is to be had
            if child is None:
                break
            node = child
            path.append(tree.tokens[node])
            before, reach = here.chance, here.chance * tree.cells[node].value
            debt = here.debt + owing(before, reach, len(path), self._debt)
            here = Reached(len(path), reach, here.tokens + reach, debt)
        self._note_worth(priced, without)

    def probe(self, priced: PricedDrafter) -> None:
        """Let a drafter guess one token, whatever that is worth."""
        without = self.gain()
        if guesses := self._round_context.admitted((), priced.guess((), 1)):
            node = self.tree.add(-1, priced.name, guesses)[0]
            if not self._round_context.verifier.trims:
                self._drawn = node
        self._note_worth(priced, without)

    def _note_worth(self, priced: PricedDrafter, without: float) -> None:
        """A drafter was asked, if it has guessed; the round was expected to gain `without` before."""
        if priced.guesses:
            priced.asked(self.gain() - without - self.rate * priced.steady_seconds)

    def _may_improve(self, priced: PricedDrafter, child: int | None, depth: int) -> bool:
        """Whether a guess of a drafter may be worth its price at a place with the likeliest `child`."""
        if priced.has_guessed(depth) and self._round_context.verifier.trims:
            return False  # it was asked wherever that pays
        if child is None:
            return True
        first, later = priced.ahead.first.value, priced.ahead.later.value
        further = (1 - later**_FURTHER) / (1 - later)
        better = (later if depth else first) - self.tree.cells[child].value
        return better * further > self.rate * priced.price(depth, 1)

    def _guessed(self, priced: PricedDrafter, node: int, path: Sequence[int], length: int, chance: float) -> int | None:
        """The node to go on from after a drafter's guess below `node`; None if it has none.

        Args:
            path: to `node`.
            length: of the chain that the guess is to be the beginning of.
            chance: to come to `node`.
        """
        guesses = self._round_context.admitted(path, priced.guess(path, self._most, length - len(path)))
        if not guesses:
            return None
        nodes = self.tree.add(node, priced.name, guesses)
        if not self._round_context.verifier.trims:
            self._drawn = nodes[0]
            return self._drawn
        if priced.has_guessed(len(path) + 1):
            frontier = list[Place]()
            self._push_children(frontier, (-chance, node, tuple(path)))
            self._grow(frontier, priced)
        return self.tree.likeliest(node)

    def _grow(self, frontier: list[Place], block: PricedDrafter | None = None) -> None:
        """Ask the free drafters at the likeliest places first, and one a pass of which makes guesses there."""
        while frontier and len(self.tree) < self._room:
            place = heapq.heappop(frontier)
            _, node, path = place
            if path and self._round_context.is_over(path):
                continue
            self._look(node, path)
            if block is not None and block.has_guessed(len(path)):
                guesses = self._round_context.admitted(path, block.guess(path, self._most))
                self.tree.add(node, block.name, guesses)
            self._push_children(frontier, place)

    def _push_children(self, frontier: list[Place], place: Place) -> None:
        """Push the places after `place` where it may pay to look further."""
        negative, node, path = place
        cells = self.tree.cells
        for token, child in self.tree.children(node).items():
            chance = -negative * cells[child].value
            if self._pays(len(path) + 1, chance):
                heapq.heappush(frontier, (-chance, child, (*path, token)))

    def _with_all_drawn(self) -> list[int]:
        """The chain to the deepest drawn token, and what free drafters add to it as far as that pays."""
        tree = self.tree
        nodes = tree.line(self._drawn)
        reach = tree.reach()
        total = best = due = 0.0
        drawn = length = len(nodes)
        while (child := tree.likeliest(nodes[-1])) is not None and len(nodes) < len(self.cost) - 1:
            due += owing(reach[nodes[-1]], reach[child], len(nodes) + 1, self._debt)
            nodes.append(child)
            total += reach[child]
            value = total - self.cost[len(nodes)] + self.cost[drawn] - due
            if value > best:
                best, length = value, len(nodes)
        return nodes[:length]

    def _look(self, node: int, path: Sequence[int]) -> None:
        """Ask the free drafters what follows `node`, unless they were asked."""
        if node in self._looked or len(self.tree) >= self._room:
            return
        self._looked.add(node)
        for drafter in self._free:
            guesses = self._round_context.admitted(path, drafter.guess(path, self._most))
            # What is drawn and may not be left out must be bought, and not all that comes for nothing is worth that.
            if guesses and (self._round_context.verifier.trims or guesses[0].q is None):
                self.tree.add(node, drafter.name, guesses)

    def _pays(self, length: int, chance: float) -> bool:
        """Whether it may pay to look further from a draft of `length` tokens, all accepted with this chance.

        No further token is likelier than that, so there must be a longer draft whose further tokens cost less each.
        """
        least = self._least.get(length)
        if least is None:
            cost, here = self.cost, self.cost[min(length, len(self.cost) - 1)]
            slopes = [(cost[n] - here) / (n - length) for n in range(length + 1, len(cost))]
            least = self._least[length] = min(slopes, default=math.inf)
        return chance > least + self._look_price

    def _best(self) -> Selection:
        if not self.tree:
            return Selection([], 0.0)
        chain = select_chain(self.tree, self.cost, self._debt)
        if self._trees is None:
            return chain
        surcharge = self.rate * self._trees + _RELUCTANCE
        tree = select_tree(self.tree, [cost + surcharge for cost in self.cost])
        return tree if tree.nodes and tree.gain > chain.gain else chain

    def _horizon(self, priced: PricedDrafter, here: Reached, errors: float = 1.0) -> Horizon:
        """The best of all chains that go on from `here` by a drafter's guesses.

        It looks no further where no longer chain is better, not even with all its guesses in the cheapest pass.
        """
        n, reach, total, due = here
        later = 1 - errors * (1 - priced.ahead.later.value)
        chance = reach * (later if n else priced.ahead.first.value)
        cost, cheapest, debt = self.cost, self._cheapest_of_longer(), self._debt
        best, length = -math.inf, n + 1
        for count in range(1, len(cost) - n):
            drafting = self.rate * priced.price(n, count)
            if total + chance / (1 - later) - due - cheapest[n + count] - drafting <= best:
                break
            total += chance
            due += owing(reach, chance, n + count, debt)
            if (gain := total - due - cost[n + count] - drafting) > best:
                best, length = gain, n + count
            reach, chance = chance, chance * later
        return Horizon(best, length)

    def _cheapest_of_longer(self) -> list[float]:
        """By the number of tokens drafted, the least `cost` of a draft of that many or more."""
        if not self._cheapest:
            self._cheapest = list(accumulate(reversed(self.cost), min))[::-1]
        return self._cheapest
