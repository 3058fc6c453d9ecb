"""Heads that draft for their target (multi-token prediction), by the headers of files: in the target's or alone."""

from __future__ import annotations

from pathlib import Path

from .gguf_header import Header, header

#: Architectures of files that hold a head and no model.
_ALONE = ("gemma4-assistant", "eagle3", "dflash")
#: Architectures whose head is one layer that reads a row of its target and a token, and has a KV cache of its own.
#: Others have several heads (step35), or take one token a pass (mimo2).
_ONE_LAYER = ("qwen35", "qwen35moe", "qwen3next", "deepseek2", "glm4moe", "nemotron_h_moe")
_ASSISTANT = "gemma4-assistant"  # several layers that read the KV cache of the target


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


def drafts(head: Header) -> bool:
    """Whether the file holds a head, alone or beside its model, with which edgespec drafts."""
    if head.architecture == _ASSISTANT:
        return True
    one = head.architecture in _ONE_LAYER and head_layers(head) == 1
    return one and (has_head(head) or is_alone(head))


def shares_cache(head: Header) -> bool:
    """Whether a head reads the KV cache of its target, and has none."""
    return head.architecture == _ASSISTANT


def fits(target: Header, head: Header) -> bool:
    """Whether a file without a model holds a head for the model `target`, as far as headers tell: the hidden rows are
    as wide, and the tokens as many."""
    if not (is_alone(head) and drafts(head)):
        return False
    of = "gemma4" if shares_cache(head) else head.architecture
    width = head.number("embedding_length_out") or head.number("embedding_length")
    same = (of, width) == (target.architecture, target.number("embedding_length"))
    return same and head.vocabulary.size == target.vocabulary.size


def is_head_file(path: Path) -> bool:
    """Whether the file at `path` holds a head without its model.

    Raises:
        ModelFileError: it is a GGUF file that cannot be read.
    """
    return path.suffix.lower() == ".gguf" and path.is_file() and is_alone(header(path))
