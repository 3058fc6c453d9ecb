"""Test doubles: drafters with given guesses, controllers with given drafts, and a clock that tests set."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from ..backends.toy import Rule
from ..controller.candidates import Candidates
from ..controller.fixed import with_passengers
from ..drafters import Drafter
from ..types import Draft, Guess, Round
from ..verify import RoundContext


class Clock:
    """A replacement of the module `time`: `now` changes only if a test changes it."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        return self.now


class FunctionDrafter:
    """A drafter whose guesses are those of a function of context and path. It records all calls.

    Args:
        guesses: the function.
        step_price: the seconds of a guess; they are added to the clock.
    """

    def __init__(
        self,
        guesses: Callable[[Sequence[int], Sequence[int]], Sequence[Guess]],
        name: str = "saying",
        *,
        step_price: float = 0.0,
        clock: Clock | None = None,
    ) -> None:
        self.name = name
        self.step_price = step_price
        self.begun = 0
        self.asked: list[tuple[int, ...]] = []
        self.rounds: list[Round] = []
        self.closed = 0
        self._guesses = guesses
        self._clock = clock or Clock()
        self._context: Sequence[int] = ()

    def begin(self, round_context: RoundContext) -> None:
        self.begun += 1
        self._context = round_context.tokens

    def guess(self, path: Sequence[int], most: int) -> Sequence[Guess]:
        self.asked.append(tuple(path))
        self._clock.now += self.step_price
        return self._guesses(self._context, path)[:most]

    def observe(self, round: Round) -> None:  # noqa: A002 - the protocol's word
        self.rounds.append(round)

    def close(self) -> None:
        self.closed += 1


class BlockFunctionDrafter(FunctionDrafter):
    """The same, one pass of which makes guesses at several depths.

    Args:
        block_prices: the seconds of a pass by the guesses it makes; they are added to the clock.
    """

    def __init__(
        self,
        guesses: Callable[[Sequence[int], Sequence[int]], Sequence[Guess]],
        block_prices: Sequence[float],
        name: str = "block",
        *,
        clock: Clock | None = None,
    ) -> None:
        super().__init__(guesses, name, clock=clock)
        self.step_price = block_prices[0]
        self.block_prices = tuple(block_prices)
        #: The path and the number of guesses of each pass.
        self.passes: list[tuple[tuple[int, ...], int]] = []
        self._planned = len(block_prices)
        self._pass: tuple[tuple[int, ...], int] | None = None

    def begin(self, round_context: RoundContext) -> None:
        super().begin(round_context)
        self._planned, self._pass = len(self.block_prices), None

    def plan(self, guesses: int) -> None:
        self._planned = min(guesses, len(self.block_prices))

    def guess(self, path: Sequence[int], most: int) -> Sequence[Guess]:
        path = tuple(path)
        start, n = self._pass or ((), 0)
        if not len(start) <= len(path) < len(start) + n or path[: len(start)] != start:
            self._pass = path, self._planned
            self.passes.append(self._pass)
            self._clock.now += self.block_prices[self._planned - 1]
        self.asked.append(path)
        return self._guesses(self._context, path)[:most]


def table_drafter(
    name: str, book: Mapping[tuple[int, ...], Sequence[Guess]], step_price: float = 0.0
) -> FunctionDrafter:
    """A drafter with the guesses of `book` by path, for any context; no guesses for other paths."""
    return FunctionDrafter(lambda _context, path: book.get(tuple(path), ()), name, step_price=step_price)


class RuleDrafter(FunctionDrafter):
    """A drafter with the likeliest tokens of a rule as guesses, without price and without q."""

    def __init__(self, rule: Rule, name: str = "rule", confidence: float = 0.7) -> None:
        def guesses(context: Sequence[int], path: Sequence[int]) -> Sequence[Guess]:
            best = np.argsort(-rule([*context, *path]), kind="stable")[:4].tolist()
            return [Guess(token, confidence / (1 + 2 * rank)) for rank, token in enumerate(best)]

        super().__init__(guesses, name)


class WrongFirstDrafter(RuleDrafter):
    """If two guesses are requested, the first is wrong: wrong siblings precede the right one."""

    def guess(self, path: Sequence[int], most: int) -> Sequence[Guess]:
        best = super().guess(path, 1)[0]
        return (Guess(int(best.token == 0), 0.2), best)[-most:]


class ChainController:
    """A controller that drafts a chain of `k` tokens in every round, by the first drafter that has a guess, and takes
    passengers."""

    def __init__(self, drafters: Sequence[Drafter], k: int) -> None:
        self.drafters = tuple(drafters)
        self._k = k

    def choose(self, round_context: RoundContext, limit: int) -> Draft:
        for drafter in self.drafters:
            drafter.begin(round_context)
            found, path = Candidates(), list[int]()
            while len(path) < min(self._k, limit) and not (path and round_context.is_eog(path[-1])):
                if not (guesses := drafter.guess(path, 1)):
                    break
                found.add(len(path) - 1, drafter.name, guesses[0])
                path.append(guesses[0].token)
            if path:
                return with_passengers(found.draft(), self.drafters, round_context, limit)
        return with_passengers(Draft(), self.drafters, round_context, limit)

    def observe(self, round: Round) -> None:  # noqa: A002 - the protocol's word
        """It learns nothing."""


class TreeController:
    """A controller that drafts the tree of all guesses of all drafters, two per node and drafter, at most `n` nodes.

    It expands the newest and the oldest node in turn, so that the nodes of different branches are interleaved, and
    takes passengers.
    """

    def __init__(self, drafters: Sequence[Drafter], n: int) -> None:
        self.drafters = tuple(drafters)
        self._n = n

    def choose(self, round_context: RoundContext, limit: int) -> Draft:
        found, most = Candidates(), min(self._n, limit)  # the limit is small near the end of the context
        for stream, drafter in enumerate(self.drafters):
            drafter.begin(round_context._replace(stream=stream))
        waiting, turn = [-1], 0
        while waiting and len(found) < most:
            node, turn = waiting.pop(-1 if turn % 2 else 0), turn + 1
            path = found.path(node)
            if len(path) >= limit or (path and round_context.is_eog(path[-1])):
                continue
            for drafter in self.drafters:
                for guess in drafter.guess(path, 2)[: most - len(found)]:
                    if (new := found.add(node, drafter.name, guess)) not in waiting:
                        waiting.append(new)
        return with_passengers(found.draft(), self.drafters, round_context, limit)

    def observe(self, round: Round) -> None:  # noqa: A002 - the protocol's word
        """It learns nothing."""


class RandomController:
    """A controller that chooses at random, by its seed: plain steps, chains, trees, guesses that are not drafted,
    rounds that begin twice or not at all.
    """

    def __init__(self, drafters: Sequence[Drafter], seed: int = 0) -> None:
        self.drafters = tuple(drafters)
        self._rng = random.Random(seed)  # noqa: S311 - no secret

    def choose(self, round_context: RoundContext, limit: int) -> Draft:
        rng = self._rng
        kind = rng.choice(("plain", "idle", "chain", "tree", "twice"))
        if kind == "plain" or limit < 1:
            return Draft()
        chosen = (ChainController if kind == "chain" else TreeController)(self.drafters, rng.choice((1, 2, 3, 5, 9)))
        draft = chosen.choose(round_context, limit)
        # Tokens that were drawn must not be pruned, see `Verifier.trims`.
        if kind == "idle" and round_context.verifier.trims:
            return Draft()
        return chosen.choose(round_context, limit) if kind == "twice" else draft

    def observe(self, round: Round) -> None:  # noqa: A002 - the protocol's word
        """It learns nothing."""
