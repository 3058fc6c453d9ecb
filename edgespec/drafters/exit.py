"""Early exit: the first layers of the target, with its own norm and output matrix (Elhoushi et al. 2024)."""

from __future__ import annotations

from .head import HeadDrafter


class ExitDrafter(HeadDrafter):
    """Drafts with the first layers of a target that shares them, and their cache, with the draft."""

    name = "exit"
