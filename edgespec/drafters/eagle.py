"""EAGLE-1 and 2: a head that continues the target's final states (Li et al. 2024, arXiv 2401.15077 and 2406.16858).

The two have the same heads. EAGLE-2's contribution is a tree that grows by the confidence of the head, which the
controller does for every drafter.
"""

from __future__ import annotations

from .head import HeadDrafter


class EagleDrafter(HeadDrafter):
    """Drafts with a head that reads the target's final states, and was trained for a model that others made."""

    name = "eagle"
