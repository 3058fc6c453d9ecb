"""Every outcome of a piece of code that draws lots, each with its probability: no sample, no error."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable
from typing import TypeVar

import pytest

from edgespec.types import Distribution

Result = TypeVar("Result", bound=Hashable)


class Outcomes:
    """Stands in the verifiers for all that is random, and has them go every way there is.

    Draws count as independent here; whether the noise is, others must test.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._script: list[int] = []
        self._ways: list[int] = []
        self._probability = 1.0
        for module in ("rejection", "block"):
            monkeypatch.setattr(f"edgespec.verify.{module}.draw", self._draw)
            monkeypatch.setattr(f"edgespec.verify.{module}.happens", self._happens)

    def of(self, function: Callable[[], Result]) -> dict[Result, float]:
        """The law of what `function` returns."""
        found: Counter[Result] = Counter()
        self._script = []
        while True:
            self._ways, self._probability = [], 1.0
            result = function()
            found[result] += self._probability  # type: ignore[assignment]
            while self._script and self._script[-1] == self._ways[len(self._script) - 1] - 1:
                self._script.pop()
            if not self._script:
                return dict(found)
            self._script[-1] += 1

    def _draw(self, choices: Distribution, _seed: int, _position: int, _purpose: int) -> int:
        way = self._way(len(choices.tokens))
        self._probability *= float(choices.probs[way])
        return int(choices.tokens[way])

    def _happens(self, chance: float, _seed: int, _position: int, _node: int) -> bool:
        if chance <= 0 or chance >= 1:
            return chance >= 1
        way = self._way(2)
        self._probability *= (1 - chance, chance)[way]
        return bool(way)

    def _way(self, ways: int) -> int:
        """Which of so many ways to go: as the script says, and past its end the first."""
        self._ways.append(ways)
        if len(self._ways) > len(self._script):
            self._script.append(0)
        return self._script[len(self._ways) - 1]
