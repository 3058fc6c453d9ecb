"""What several tests need, beside what is public in `edgespec.testing`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import TypeVar

import numpy as np
import pytest

from edgespec.backends.toy import Rule, ToySession
from edgespec.controller.budget import Budget
from edgespec.controller.calibration import Calibration, Guesses
from edgespec.drafters.medusa import MedusaDrafter
from edgespec.prices import Prices, RunningPrice
from edgespec.runtime import opening
from edgespec.testing import (
    ALL_ON,
    BlockFunctionDrafter,
    Clock,
    FunctionDrafter,
    RuleDrafter,
    TreeController,
    WrongFirstDrafter,
    decode_plain,
    logits,
    never,
    table,
    table_drafter,
)
from edgespec.testing import make_round_context as round_context
from edgespec.types import Floats, Ints
from edgespec.verify import RoundContext

__all__ = [
    "ALL_ON",
    "BlockFunctionDrafter",
    "Clock",
    "FunctionDrafter",
    "Priced",
    "RuleDrafter",
    "ToldMedusa",
    "ToyHeads",
    "TreeController",
    "WrongFirstDrafter",
    "count",
    "decode_plain",
    "fits",
    "ignore_machine_times",
    "in_blocks",
    "logits",
    "never",
    "round_context",
    "table",
    "table_drafter",
    "trusting",
]

Cell = TypeVar("Cell", bound=Hashable)


def fits(counts: Mapping[Cell, int], expected: Mapping[Cell, float]) -> bool:
    """Whether `counts` may come from the probabilities `expected`, by chi-square.

    Passes below the mean of the statistic plus 5 of its standard deviations: by chance one seed in 10^4 or
    fewer does not, and the seeds here are fixed.
    """
    if any(expected.get(cell, 0) <= 0 for cell in counts):
        return False
    n = sum(counts.values())
    cells = {cell: p * n for cell, p in expected.items() if p > 0}
    assert min(cells.values()) >= 5, "too few draws for this test"
    freedom = len(cells) - 1
    chi_square = sum((counts.get(cell, 0) - mean) ** 2 / mean for cell, mean in cells.items())
    return bool(chi_square < freedom + 5 * (2 * freedom) ** 0.5)


def count(cells: Iterable[Cell]) -> Mapping[Cell, int]:
    return Counter(cells)


def trusting(*names: str) -> Calibration:
    """A calibration that takes these drafters at their word: what they promised so far, they kept."""
    kept = [[30.0, 30.0], *[[0.0, 0.0, []]] * len(Guesses().cells)]
    return Calibration.of({"guesses": [[name, rank, kept] for name in names for rank in range(4)]})


class Priced(ToySession):
    """A toy session whose passes take time by a list: `seconds[n - 1]` for n tokens, the last for more."""

    def __init__(
        self,
        rule: Rule,
        vocab: int,
        clock: Clock,
        seconds: Sequence[float],
    ) -> None:
        super().__init__(rule, vocab)
        self._clock = clock
        self._prices = seconds

    def decode(self, tokens: Sequence[int], tree: Sequence[int] | None = None) -> Floats:
        self._clock.now += self._prices[min(len(tokens), len(self._prices)) - 1]
        return super().decode(tokens, tree)


def in_blocks(rule: Rule, mask: int) -> Rule:
    """The rule of a model that knows what follows masks: what `rule` says after its own likeliest tokens in their
    place."""

    def row(context: Sequence[int]) -> Floats:
        known = list(context)
        while known and known[-1] == mask:
            known.pop()
        for _ in range(len(context) - len(known) if known else 0):
            known.append(int(rule(known).argmax()))
        return rule(known or context)

    return row


class ToyHeads:
    """Medusa heads that know a rule; a state is the last tokens before the one that was chosen from it.

    They take the likeliest tokens of the rule for those between, as heads do that were trained well.

    Args:
        top: guesses of each head.
    """

    kind, width = "medusa", 4

    def __init__(self, rule: Rule, heads: int, top: int = 8) -> None:
        self.heads, self._rule, self._top = heads, rule, top

    def require_fit(self, vocabulary: object) -> None:
        """All vocabularies do."""

    def require_width(self, width: int) -> None:
        assert width == self.width

    def guesses(self, state: Floats) -> tuple[Ints, Floats]:
        known = [int(token) for token in state if token >= 0]
        known.append(int(self._rule(known).argmax()))
        tokens, logs = [], []
        for _ in range(self.heads):
            row = self._rule(known)
            best = np.argsort(-row, kind="stable")[: self._top]
            tokens.append(best)
            logs.append((row - np.logaddexp.reduce(row))[best])
            known.append(int(best[0]))
        return np.stack(tokens), np.stack(logs).astype(np.float32)


class ToldMedusa(MedusaDrafter):
    """Is told the state of the committed tokens where a round begins, for a target that gives none."""

    def begin(self, round_context: RoundContext) -> None:
        super().begin(round_context)
        before = round_context.tokens[:-1]
        self.forget(0)
        if before:
            state = [-1.0] * ToyHeads.width + [float(token) for token in before]
            self.heard(len(before) - 1, before[-1:], np.array(state[-ToyHeads.width :], np.float32)[None])


def ignore_machine_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no drafter be too slow, and no time of speculation be a loss: a toy model is faster than any decision."""
    monkeypatch.setattr(RunningPrice, "observe", lambda *_arguments: None)
    monkeypatch.setattr(Prices, "observe", lambda *_arguments: None)  # nor a hiccup a change of the machine's pace
    monkeypatch.setattr(Budget, "is_left", True)
    monkeypatch.setattr(Budget, "is_left_for_priced", True)
    # Nor are its prices those of a machine that has other things to do: a draft costs a hundredth a token.
    monkeypatch.setattr(opening, "_priced", lambda *_arguments: Prices([1.0 + 0.01 * n for n in range(32)]))
