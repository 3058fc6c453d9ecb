"""Rotary position embeddings: the rotation frequencies of a head."""

from __future__ import annotations

from dataclasses import dataclass
from math import pi

import numpy as np
import numpy.typing as npt

Doubles = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Scaling:
    """`kind` is "none", "linear", "llama3", "longrope", "yarn", or "proportional", of which `factor` is the share that
    turns.

    `low`, `high` and `original_context` are llama3's and YaRN's: how many turns within that context are few, and many.
    `short` and `long` are longrope's divisors up to `original_context` and beyond it, and `magnitude` is what it
    multiplies cosine and sine by.
    """

    kind: str = "none"
    factor: float = 1.0
    low: float = 1.0
    high: float = 1.0
    original_context: int = 0
    short: tuple[float, ...] = ()
    long: tuple[float, ...] = ()
    magnitude: float = 1.0


@dataclass(frozen=True, slots=True)
class Rope:
    """`width` is how many numbers of a head are rotated: the first ones, paired by halves.

    `sections`: how many pairs turn by time, height and width of a picture; the positions of text are alike in all.
    """

    theta: float
    width: int
    scaling: Scaling = Scaling()
    sections: tuple[int, ...] = ()

    def factors(self) -> npt.NDArray[np.float32] | None:
        """The divisor of each rotation frequency, float32 [width / 2]; None where all have the same divisor."""
        return self._divisors().astype(np.float32) if self.scaling.kind in {"llama3", "proportional"} else None

    def frequencies(self) -> Doubles:
        """In radians, float64 [width / 2], scaling included."""
        found: Doubles = self._frequencies() / self._divisors()
        return found

    def _frequencies(self) -> Doubles:
        found: Doubles = self.theta ** (-np.arange(0, self.width, 2) / self.width)
        return found

    def _divisors(self) -> Doubles:
        """llama3: long wavelengths are stretched by the factor, short ones kept, those between blended."""
        scaling = self.scaling
        if scaling.kind == "longrope":
            return np.array(scaling.short)
        if scaling.kind == "proportional":
            turning = int(self.width * scaling.factor / 2)
            return np.where(np.arange(self.width // 2) < turning, 1.0, 1e30)
        if scaling.kind != "llama3":
            return np.full(self.width // 2, scaling.factor)
        turns = scaling.original_context * self._frequencies() / (2 * pi)
        blend = np.clip((turns - scaling.low) / (scaling.high - scaling.low), 0.0, 1.0)
        found: Doubles = 1.0 / ((1.0 - blend) / scaling.factor + blend)
        return found
