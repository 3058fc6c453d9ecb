"""The exact distribution of the results of code that draws random numbers, by enumeration instead of sampling."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable
from types import TracebackType
from typing import TypeVar

from ..types import Distribution
from ..verify import block, rejection
from .errors import require

Result = TypeVar("Result", bound=Hashable)


class Outcomes:
    """A context manager that replaces the random functions of the verifiers and enumerates all their results.

    Draws are treated as independent; the independence of the noise is tested elsewhere. It replaces functions of
    modules, so only one may be active, and on one thread.
    """

    def __init__(self) -> None:
        self._script: list[int] = []
        self._ways: list[int] = []
        self._before: list[int] = []
        self._probability = 1.0
        self._real = [(module, module.draw, module.happens) for module in (rejection, block)]

    def __enter__(self) -> Outcomes:
        for module, _, _ in self._real:
            vars(module).update(draw=self._draw, happens=self._happens)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for module, draw, happens in self._real:
            vars(module).update(draw=draw, happens=happens)

    def of(self, function: Callable[[], Result]) -> dict[Result, float]:
        """The distribution of the result of `function`.

        Raises:
            LawError: with the same draws, `function` makes other draws when it is repeated.
        """
        found: Counter[Result] = Counter()
        self._script, self._before = [], []
        while True:
            self._ways, self._probability = [], 1.0
            result = function()
            found[result] += self._probability  # type: ignore[assignment]
            self._before = self._ways
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
        """The result, from 0, of a draw with `ways` results: that of the script, or 0 beyond its end."""
        at = len(self._ways)
        self._ways.append(ways)
        if at >= len(self._script):
            self._script.append(0)
            return 0
        require(
            self._before[at : at + 1] == [ways],
            "repeated with the same seed it makes other draws: all randomness must come from RoundContext.draw",
        )
        return self._script[at]
