"""The vocabulary of a head's target, as far as the file of the head tells."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SampledLabels:
    """A vocabulary of which only a sample is known (`Labels`): other tokens have no label."""

    size: int
    labels: Mapping[int, str]

    def label(self, token: int) -> str:
        return self.labels.get(token, "")
