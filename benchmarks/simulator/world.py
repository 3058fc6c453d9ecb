"""Replays a controller on a trace at given prices: no clock, repeatable noise, thousands of rounds a second."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from operator import sub

import numpy as np

from edgespec.backends import common_prefix
from edgespec.controller import Controller
from edgespec.drafters import Drafter
from edgespec.drafters.lookup import Lookup
from edgespec.prices import Prices
from edgespec.sampling import Sampling
from edgespec.types import Draft, Guess, Round
from edgespec.verify import RoundContext, verifier

from .noise import SILENCE, Noise
from .trace import DEPTH, Item, Trace

WIDTHS = 32


@dataclass(frozen=True)
class Curve:
    """What passes cost on some machine: t(n) / t(1) at some widths, between which prices are linear.

    `step` is what a guess of the draft model costs, in plain steps; `tree` what a tree costs beyond a chain. `starts`
    are the prices of the first, the second ... pass in a row of a width, where they are others (`Session.settling`).
    """

    name: str
    widths: tuple[int, ...]
    prices: tuple[float, ...]
    step: float = 0.05
    tree: float = 0.01
    starts: tuple[tuple[float, ...], ...] = ()

    @property
    def seconds(self) -> list[float]:
        """For widths 1 to `WIDTHS`, a plain step taking one second; beyond the last width by the mean slope."""
        return self._between(self.prices)

    @property
    def in_a_row(self) -> list[list[float]]:
        """The same for the first, the second ... pass in a row of its width; the last are those of all later ones."""
        return [*map(self._between, self.starts), self.seconds]

    @property
    def switching(self) -> float:
        """As `Prices.switching`, in plain steps: the median of all widths."""
        if not self.starts:
            return 0.0
        first, *_, settled = self.in_a_row
        return float(statistics.median(map(sub, first, settled)))

    def _between(self, known: Sequence[float]) -> list[float]:
        slope = (known[-1] - known[0]) / (self.widths[-1] - self.widths[0])
        last = known[-1] + slope * (WIDTHS - self.widths[-1])
        widths, prices = (*self.widths, WIDTHS), (*known, last)
        return [float(np.interp(n, widths, prices)) for n in range(1, WIDTHS + 1)]


#: t(n) / t(1) of a 1B Llama on two CPU cores (docs say how measured), and a GPU's: flat to 8, then a cliff.
CURVES = (
    Curve("llama.cpp q8_0", (1, 2, 3, 4, 5, 6, 8, 12, 16), (1, 1.5, 1.8, 1.8, 2.8, 3.0, 2.9, 4.1, 5.2)),
    Curve("llama.cpp q4_0", (1, 2, 3, 4, 5, 6, 8, 12, 16), (1, 1.7, 2.4, 2.5, 3.4, 4.0, 5.0, 7.0, 7.1)),
    Curve("llama.cpp f16", (1, 2, 3, 4, 5, 6, 8, 12, 16), (1, 1.4, 1.5, 1.5, 1.6, 1.7, 2.3, 3.1, 3.8)),
    Curve("onnx int4", (1, 2, 3, 4, 5, 6, 8, 12, 16), (1, 1.3, 1.7, 2.0, 2.4, 2.8, 3.3, 4.8, 6.3)),
    Curve("gpu", (1, 2, 8, 9, 16), (1, 1.05, 1.15, 2.6, 2.8)),
)


@dataclass(frozen=True)
class Deciding:
    """What the controller itself costs, in plain steps: of a round in which it asks anybody, and of each look-up."""

    round: float = 0.0
    look_up: float = 0.0


class Clock:
    """The time, as the simulation tells it."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Recorded:
    """The draft model of a trace: what it guessed at this place, at the price of a step a guess.

    Args:
        reading: what it takes to read a token that others guessed, in guesses; its own guesses it has read.
    """

    name = "model"

    def __init__(self, clock: Clock, step_price: float, reading: float = 0.0) -> None:
        self.step_price = step_price
        self.reading_price = math.inf  # expected until it is measured
        self.item: Item | None = None
        self.steps = 0
        self._reading = reading
        self._read: list[int] = []
        self._context: Sequence[int] = ()
        self._clock = clock
        self._at = 0

    def held(self, context: Sequence[int]) -> int:
        """The tokens at the beginning of `context` that it has read, its own guesses too."""
        return common_prefix(self._read, context)

    def begin(self, round_context: RoundContext) -> None:
        self._context = round_context.tokens
        if self.item is not None:
            self._at = len(round_context.tokens) - len(self.item.prompt)

    def guess(self, path: Sequence[int], most: int) -> Sequence[Guess]:
        """Known along its own likeliest guesses and along the answer; elsewhere it has nothing to say."""
        self._read_up_to(path)
        item, at, depth = self.item, self._at, len(path)
        if item is None or at >= len(item.answer):
            return ()
        self._clock.now += self.step_price
        self.steps += 1
        own = 0
        while own < depth and own < DEPTH and path[own] == item.guesses[at, own, 0]:
            own += 1
        if own < depth:
            if tuple(path) != item.answer[at : at + depth] or at + depth >= len(item.answer):
                return ()
            at, depth = at + depth, 0
        if depth >= DEPTH:
            return ()
        tokens, probs = item.guesses[at, depth], item.probs[at, depth]
        return [Guess(int(tokens[i]), float(probs[i])) for i in range(min(most, 2))]

    def _read_up_to(self, path: Sequence[int]) -> None:
        text = [*self._context, *path]
        unread = len(text) - common_prefix(self._read, text)
        self._clock.now += self._reading * self.step_price * max(0, unread - 1)  # the last one is the guess's own
        self._read = text

    def observe(self, round: Round) -> None:  # noqa: A002
        """It learns nothing."""

    def close(self) -> None:
        """It holds nothing."""


class Timed:
    """A drafter whose guesses cost what deciding costs: nothing that it knows of."""

    def __init__(self, drafter: Drafter, clock: Clock, cost: Deciding) -> None:
        self.name = drafter.name
        self.step_price = drafter.step_price
        self._drafter = drafter
        self._clock = clock
        self._cost = cost
        self._asked = False

    def begin(self, round_context: RoundContext) -> None:
        self._drafter.begin(round_context)
        self._asked = False

    def guess(self, path: Sequence[int], most: int) -> Sequence[Guess]:
        self._clock.now += self._cost.look_up + (0.0 if self._asked else self._cost.round)
        self._asked = True
        return self._drafter.guess(path, most)

    def observe(self, round: Round) -> None:  # noqa: A002
        self._drafter.observe(round)

    def close(self) -> None:
        self._drafter.close()


class Streak:
    """Passes of one width in a row.

    Args:
        plain: how many plain steps there were before.
    """

    def __init__(self, plain: int) -> None:
        self._width, self._count = 1, plain

    def after(self, width: int) -> int:
        """How many there are of that width in a row after one more."""
        self._width, self._count = width, self._count + 1 if width == self._width else 1
        return self._count


@dataclass
class Outcome:
    """What a run brought and took."""

    tokens: int = 0
    #: By the clock, in plain steps' time.
    seconds: float = field(default=0.0, compare=False)
    #: Rounds by width of the pass and whether its draft was a tree.
    passes: Counter[tuple[int, bool]] = field(default_factory=Counter)
    #: Guesses of the draft model.
    steps: int = 0
    accepted: int = 0

    @property
    def rounds(self) -> int:
        return self.passes.total()

    def speedup(self, curve: Curve) -> float:
        """Tokens per plain step's time, over plain decoding's one, were passes priced by `curve`."""
        seconds = curve.seconds
        spent = sum(n * (seconds[width - 1] + tree * curve.tree) for (width, tree), n in self.passes.items())
        return self.tokens / (spent + self.steps * curve.step)


class World:
    """A trace on a machine.

    Args:
        dear: the prices of wide passes that the controller starts with, over what they take.
        reading: what the draft model takes to read a token, in guesses.
    """

    def __init__(
        self,
        trace: Trace,
        curve: Curve,
        noise: Noise = SILENCE,
        deciding: Deciding = Deciding(),
        dear: float = 1.0,
        reading: float = 0.0,
    ) -> None:
        self.trace = trace
        self.curve = curve
        self.clock = Clock()
        self.model = Recorded(self.clock, curve.step, reading)
        self.look_up = Timed(Lookup(), self.clock, deciding)
        plain, *wide = curve.seconds
        self.prices = Prices([plain, *(dear * seconds for seconds in wide)])
        self.prices.switching = curve.switching
        self._noise = noise
        #: Called with the context before a round, its draft and the accepted path.
        self.evaluated: Callable[[Sequence[int], Draft, Sequence[int]], None] = _nothing
        #: The item under way.
        self.item: Item | None = None

    def run(self, controller: Controller) -> Outcome:
        """Let `controller` decode the trace."""
        outcome = Outcome()
        rule, sampling, seconds = verifier("match"), Sampling(), self.curve.in_a_row
        for item in self.trace.items:
            self.item = self.model.item = item
            context = list(item.prompt)
            text = (*item.prompt, *item.answer)
            row, settled = (
                Streak(0),
                Streak(len(self.curve.starts)),
            )  # plain decoding pays for what follows a prompt, too
            passes = 0
            while len(context) < len(text):
                round_context = RoundContext(rule, sampling, context, lambda _token: False)
                started = self.clock.now
                draft = controller.choose(round_context, min(WIDTHS, len(text) - len(context)) - 1)
                drafting = self.clock.now - started
                path = accepted(draft, text[len(context) :])
                place = min(row.after(1 + len(draft)), len(seconds)) - 1
                took = seconds[place][len(draft)] + (not draft.is_chain) * self.curve.tree
                is_settled = settled.after(1 + len(draft)) > len(self.curve.starts)
                took *= self._noise.factor(self.clock.now, 1 + len(draft))
                self.clock.now += took
                said = text[len(context) : len(context) + len(path) + 1]
                round_ = Round(draft, path, said, took, drafting, len(context) - 1, settled=is_settled)
                self.evaluated(context, draft, path)
                context.extend(said)
                controller.observe(round_)
                passes += 1
                if draft.is_chain and is_settled and passes > len(self.curve.starts):
                    self.prices.observe(round_.width, round_.held, took)
                outcome.tokens += len(said)
                outcome.passes[round_.width, not draft.is_chain] += 1
                outcome.accepted += len(path)
        outcome.steps = self.model.steps
        outcome.seconds = self.clock.now
        return outcome


def _nothing(_context: Sequence[int], _draft: Draft, _path: Sequence[int]) -> None:
    """Nobody learns from passes."""


def accepted(draft: Draft, text: Sequence[int]) -> tuple[int, ...]:
    """The path of `draft` that `text` follows."""
    path: list[int] = []
    node = -1
    for token in text[:-1]:
        child = next((child for child in draft.children(node) if draft.tokens[child] == token), None)
        if child is None:
            break
        path.append(child)
        node = child
    return tuple(path)
