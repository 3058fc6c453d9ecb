"""Drafters, rounds and whole runs on a simulated clock for tests of the controller."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from edgespec.backends import Interrupt
from edgespec.backends.toy import Bytes, Rule, ngram_rule
from edgespec.controller import Controller
from edgespec.controller.adaptive import Adaptive
from edgespec.drafters import Drafter
from edgespec.drafters.lookup import Lookup
from edgespec.drafters.model import ModelDrafter
from edgespec.engine import Engine, Finished, Request, Text
from edgespec.prices import Prices
from edgespec.sampling import SHARED, uniform
from edgespec.types import Distribution, Draft, Floats, Guess, Round
from edgespec.verify import verifier

from .helpers import Clock, FunctionDrafter, Priced, round_context, table_drafter

VOCAB = 64
TARGET = ngram_rule(VOCAB, order=3, seed=9)
#: llama.cpp, Q8_0, as measured for a 1B model on two CPU cores (t(n) / t(1)).
Q8_0 = (1.0, 1.5, 1.8, 1.8, 2.8, 3.0, 3.0, 2.9, 3.5, 3.8, 4.0, 4.1, 4.6, 4.9, 5.1, 5.2)
FREE = (1.0,) * 16
DEAR = tuple(float(n) for n in range(1, 17))
RULES = ("match", "rejection")


def book(*words: tuple[int, float], name: str = "lookup", step_price: float = 0.0, q: bool = False) -> FunctionDrafter:
    """A drafter with one chain to say: tokens, and how sure it is of each."""
    path = tuple(token for token, _ in words)
    guesses = [Guess(token, sure, Distribution.point(token) if q else None) for token, sure in words]
    return table_drafter(name, {path[:n]: [guess] for n, guess in enumerate(guesses)}, step_price)


def bought(draft: Draft, path: Sequence[int], *said: int, seconds: float = 1.0, drafting: float = 0.0) -> Round:
    """The round of a purchase: the nodes accepted, and what was committed."""
    return Round(draft, tuple(path), said, seconds, drafting)


def introduced(controller: Adaptive, *said: int) -> None:
    """Strangers have had their introduction, and were wrong, or right if they said `said`."""
    for earner in range(2):
        draft = controller.choose(round_context(), 15)
        hits = [node for node, (token, truth) in enumerate(zip(draft.tokens, said, strict=False)) if token == truth]
        controller.observe(bought(draft, hits, *(said or (63,))))
        assert earner or draft


# --- whole runs


def right(rate: float, *, sure: float = 8.0, seed: int = 1) -> Rule:
    """A draft rule that is right with probability `rate` at each place, and equally sure always."""

    def rule(context: Sequence[int]) -> Floats:
        said = int(TARGET(context).argmax())
        lucky = float(uniform(seed, len(context), np.array([context[-1]]), SHARED)[0]) < rate
        row = np.zeros(VOCAB, dtype=np.float32)
        row[said if lucky else (said + 1) % VOCAB] = sure
        return row

    return rule


class Run:
    """A run of the engine on a simulated clock. `step` is what the drafter's guesses cost, `believed` what passes are
    thought to cost at first."""

    def __init__(
        self,
        patch: pytest.MonkeyPatch,
        control: Callable[[Drafter, Prices, Clock], Controller],
        rule: Rule,
        *,
        step: float = 0.1,
        curve: Sequence[float] = Q8_0,
        believed: Sequence[float] = (),
        tokens: int = 1000,
        verify: str = "match",
    ) -> None:
        clock = Clock()
        patch.setattr("edgespec.engine.time", clock)
        target = Priced(TARGET, VOCAB, clock, curve)
        prices = Prices(believed or curve)
        self.drafter = ModelDrafter(Priced(rule, VOCAB, clock, [step]), VOCAB, step)
        self.controller = control(self.drafter, prices, clock)
        engine = Engine(target, Bytes(), self.controller, verifier(verify), Interrupt(), prices)
        events = list(engine.generate(Request([1, 2, 3], max_tokens=tokens)))
        assert isinstance(events[-1], Finished)
        self.rounds = [event.round for event in events if isinstance(event, Text)]
        self.said = [token for round_ in self.rounds for token in round_.tokens]
        self.seconds = clock.now
        self.rate = tokens / clock.now

    @property
    def asked(self) -> list[int]:
        """The rounds in which a guess was paid for."""
        return [n for n, round_ in enumerate(self.rounds) if round_.draft_seconds > 0]


def adaptive(drafter: Drafter, prices: Prices, clock: Clock) -> Controller:
    return Adaptive([drafter], prices, clock=clock.perf_counter)


def with_trees(drafter: Drafter, prices: Prices, clock: Clock) -> Controller:
    return Adaptive([Lookup(), drafter], prices, trees=True, clock=clock.perf_counter)
