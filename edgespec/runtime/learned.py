"""The calibration of a pair's drafters, stored between runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..backends import Model
from ..controller.calibration import Calibration
from ..storage.cache import Shelf

_VERSION = 4


class Learned:
    """The calibrations of a pair, one per verifier, because verifiers accept different tokens.

    Args:
        pair: a key for the weights of the target and its drafts; None stores nothing.
    """

    def __init__(self, pair: str | None) -> None:
        self._pair = pair
        self._calibrations: dict[str, Calibration] = {}
        #: The stored values by verifier, to write only changes.
        self._known: dict[str, Any] = {}

    @classmethod
    def of(cls, models: Sequence[Model]) -> Learned:
        """The calibrations of a target and its drafts, by the keys of their weights."""
        weights = [model.weights for model in models]
        return cls("|".join(weights) if all(weights) else None)

    def calibration(self, verifier: str) -> Calibration:
        """The calibration of a verifier, at first that of earlier runs."""
        known = self._calibrations.get(verifier)
        if known is None:
            known = self._calibrations[verifier] = Calibration.of(self._shelf(verifier).read() if self._pair else {})
            self._known[verifier] = known.kept()
        return known

    def keep(self) -> None:
        """Store the calibrations that changed, for the next run. Errors of writing are ignored."""
        for verifier, calibration in self._calibrations.items() if self._pair else ():
            if (kept := calibration.kept()) != self._known[verifier]:
                self._shelf(verifier).write(kept)

    def _shelf(self, verifier: str) -> Shelf:
        return Shelf("drafters", f"{self._pair}|{verifier}", _VERSION)
