"""Heads that draft for their target (multi-token prediction): their kinds, and which of them are used."""

from __future__ import annotations

from edgespec.backends.gguf_header import Header
from edgespec.backends.head_header import (
    LAYERS_KEPT,
    drafter_of,
    drafts,
    fits,
    has_head,
    head_layers,
    is_alone,
    shares_cache,
)

from . import runtime_support

__all__ = [
    "HEAD",
    "KINDS",
    "drafter_of",
    "drafts",
    "fits",
    "has_head",
    "head_layers",
    "is_alone",
    "is_used",
    "layers_kept",
    "shares_cache",
    "used_in",
]

HEAD = "head"  #: the kind of a head for multi-token prediction
KINDS = (HEAD, "dflash")  #: the kinds of heads that the registry knows


def is_used(kind: str = HEAD) -> bool:
    """Whether this version drafts with heads of this kind."""
    return kind in runtime_support.HEADS


def used_in(head: Header) -> bool:
    """Whether this version drafts with the head that the file of a model holds; False where it holds none."""
    return is_used() and has_head(head) and drafts(head)


def layers_kept(head: Header) -> str:
    """The layers of the target of which a draft model is made, as ranges; empty for other models."""
    kept = head.fields.get(LAYERS_KEPT)
    return kept if isinstance(kept, str) and kept.isprintable() else ""
