"""A head for multi-token prediction over the target's hidden states (Gloeckle et al. 2024; DeepSeek-V3, 2024)."""

from __future__ import annotations

from .head import HeadDrafter


class MtpDrafter(HeadDrafter):
    """Drafts with the head that a model was trained with."""

    name = "mtp"
