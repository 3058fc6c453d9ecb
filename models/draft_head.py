"""Heads that draft for their target (multi-token prediction): in the target's file, or in a file of their own."""

from __future__ import annotations

from edgespec.backends.gguf_header import Header

from . import runtime_support

HEAD = "head"  #: the kind of a head for multi-token prediction
KINDS = (HEAD, "dflash")  #: the kinds of heads that the registry knows

#: Architectures of files that hold a head and no model.
_ALONE = ("gemma4-assistant", "eagle3", "dflash")


def head_layers(head: Header) -> int:
    """The layers at the end of the file that belong to a head."""
    return min(head.number("nextn_predict_layers"), head.layers)


def has_head(head: Header) -> bool:
    """Whether the file holds a head beside its model. The tensor is the one that llama.cpp looks for."""
    if not head_layers(head) or is_alone(head):
        return False
    # The header of the first of several parts lists only the tensors of that part.
    return head.parts > 1 or f"blk.{head.layers - 1}.nextn.eh_proj.weight" in head.tensors


def is_alone(head: Header) -> bool:
    """Whether the file holds a head without its model, so that it cannot be loaded as a model."""
    if head.architecture in _ALONE:
        return True
    whole = head.parts > 1 or any(name.startswith("blk.0.") for name in head.tensors)
    return 0 < head_layers(head) < head.layers and not whole


def is_used(kind: str = HEAD) -> bool:
    """Whether this version drafts with heads of this kind."""
    return kind in runtime_support.HEADS
