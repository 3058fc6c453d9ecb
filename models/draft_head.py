"""Heads that draft for their target (multi-token prediction): their kinds, and which of them are used."""

from __future__ import annotations

from edgespec.backends.head_header import has_head, head_layers, is_alone

from . import runtime_support

__all__ = ["HEAD", "KINDS", "has_head", "head_layers", "is_alone", "is_used"]

HEAD = "head"  #: the kind of a head for multi-token prediction
KINDS = (HEAD, "dflash")  #: the kinds of heads that the registry knows


def is_used(kind: str = HEAD) -> bool:
    """Whether this version drafts with heads of this kind."""
    return kind in runtime_support.HEADS
