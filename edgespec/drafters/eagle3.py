"""EAGLE-3: a head over hidden states of three layers of the target (Li et al. 2025, arXiv 2503.01840)."""

from __future__ import annotations

from .head import HeadDrafter


class Eagle3Drafter(HeadDrafter):
    """Drafts with a head that was trained for a model that others made."""

    name = "eagle3"
