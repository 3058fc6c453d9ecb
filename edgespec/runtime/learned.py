"""What was learned of a pair's drafters, kept between runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..backends import Model
from ..controller.calibration import Calibration
from ..storage.cache import Shelf

_VERSION = 1


class Learned:
    """The calibration of a pair, one for each verifier: what `rejection` accepts, `match` may not.

    Args:
        pair: names the target and what drafts for it; None begins with nothing and keeps nothing.
    """

    def __init__(self, pair: str | None) -> None:
        self._pair = pair
        self._calibrations: dict[str, Calibration] = {}
        #: By verifier, what there is no need to write.
        self._known: dict[str, Any] = {}

    @classmethod
    def of(cls, models: Sequence[Model]) -> Learned:
        """That of a target and what drafts for it, by the weights of each, for they decide how often they agree."""
        weights = [model.weights for model in models]
        return cls("|".join(weights) if all(weights) else None)

    def calibration(self, verifier: str) -> Calibration:
        """What is known so far; from earlier runs, when it is asked for first."""
        known = self._calibrations.get(verifier)
        if known is None:
            known = self._calibrations[verifier] = Calibration.of(self._shelf(verifier).read() if self._pair else {})
            self._known[verifier] = known.kept()
        return known

    def keep(self) -> None:
        """Keep it for the next run, where anything was learned. What cannot be written is learned again."""
        for verifier, calibration in self._calibrations.items() if self._pair else ():
            if (kept := calibration.kept()) != self._known[verifier]:
                self._shelf(verifier).write(kept)

    def _shelf(self, verifier: str) -> Shelf:
        return Shelf("drafters", f"{self._pair}|{verifier}", _VERSION)
