"""Heads that draft for their target (multi-token prediction), by the headers of files: in the target's or alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from .gguf_header import Header, header

#: Architectures of files that hold a head and no model.
_ALONE = ("gemma4-assistant", "eagle3", "dflash")
EAGLE3 = "eagle3"  #: the architecture of EAGLE-3's heads
#: Architectures whose head is one layer that reads a row of its target and a token, and has a KV cache of its own.
#: Others have several heads (step35), or take one token a pass (mimo2).
_ONE_LAYER = ("qwen35", "qwen35moe", "qwen3next", "deepseek2", "glm4moe", "nemotron_h_moe")
#: Keys of a head with fewer rows than its target has tokens: its tokens, see `written`, and how many the target has.
TOKENS, TARGET_TOKENS = "edgespec.head.tokens", "edgespec.head.target_tokens"
_MOST_TOKENS = 1 << 24
#: The key of a draft model that is a part of its target: the layers of the target that it has, see `written`.
LAYERS_KEPT = "edgespec.layers_kept"
_ASSISTANT = "gemma4-assistant"  # several layers that read the KV cache of the target

DRAFTING = (*_ONE_LAYER, _ASSISTANT, EAGLE3)  #: the architectures of heads that draft


def head_layers(head: Header) -> int:
    """The layers at the end of the file that belong to a head."""
    if head.architecture == EAGLE3:
        return head.layers
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
    if head.architecture in (_ASSISTANT, EAGLE3):
        return True
    one = head.architecture in _ONE_LAYER and head_layers(head) == 1
    return one and (has_head(head) or is_alone(head))


def shares_cache(head: Header) -> bool:
    """Whether a head reads the KV cache of its target, and has none."""
    return head.architecture == _ASSISTANT


def written(tokens: Sequence[int]) -> str:
    """Ascending tokens as text, in ranges: "0-99,105"."""
    ranges: list[list[int]] = []
    for token in tokens:
        if ranges and token == ranges[-1][1] + 1:
            ranges[-1][1] = token
        else:
            ranges.append([token, token])
    return ",".join(f"{first}-{last}" if last > first else f"{first}" for first, last in ranges)


def tokens_of(head: Header) -> tuple[list[int], int] | None:
    """The target's token for each row of a head with fewer rows, and how many tokens the target has; None for others.

    Raises:
        ValueError: the file contradicts itself.
    """
    text, size = head.fields.get(TOKENS), head.fields.get(TARGET_TOKENS)
    if text is None:
        return None
    if not isinstance(text, str) or not isinstance(size, int) or not 0 < size < _MOST_TOKENS:
        raise ValueError(f"{TOKENS} or {TARGET_TOKENS} is malformed")
    found: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        start, end = int(first), int(last or first)
        if not (found[-1] if found else -1) < start <= end < size:
            raise ValueError(f"{TOKENS} has {part!r:.40}, which is not an ascending range below {size}")
        found.extend(range(start, end + 1))
    if len(found) != head.number("vocab_size"):
        raise ValueError(f"{TOKENS} has {len(found)} tokens, vocab_size is {head.number('vocab_size')}")
    return found, size


def fits(target: Header, head: Header) -> bool:
    """Whether a file without a model holds a head for the model `target`, as far as headers tell: the hidden rows are
    as wide, and the tokens as many."""
    if not (is_alone(head) and drafts(head)):
        return False
    if head.architecture == EAGLE3:
        return fits_rows(head, target.number("embedding_length"), target.layers, target.vocabulary.size)
    of = "gemma4" if shares_cache(head) else head.architecture
    width = head.number("embedding_length_out") or head.number("embedding_length")
    same = (of, width) == (target.architecture, target.number("embedding_length"))
    return same and head.vocabulary.size == target.vocabulary.size


def drafter_of(head: Header) -> str:
    """The name of the drafter that uses the head in a file."""
    return "eagle3" if head.architecture == EAGLE3 else "mtp"


def target_layers(head: Header) -> tuple[int, ...]:
    """The layers of its target whose inputs an EAGLE-3 head reads."""
    return head.by_layer("target_layers") or ()


def fits_rows(head: Header, width: int, layers: int, vocabulary: int) -> bool:
    """Whether an EAGLE-3 head is one for a target with rows of `width` numbers, and so many layers and tokens."""
    same = (head.number("target_hidden_size"), head.vocabulary.size) == (width, vocabulary)
    return same and max(target_layers(head), default=0) < layers


def head_in(path: Path) -> str | None:
    """The name of the drafter that uses the head in the file at `path`, which has no model; None for other files.

    Raises:
        ModelFileError: it is a GGUF file that cannot be read.
    """
    return drafter_of(header(path)) if is_head_file(path) else None


def is_head_file(path: Path) -> bool:
    """Whether the file at `path` holds a head without its model.

    Raises:
        ModelFileError: it is a GGUF file that cannot be read.
    """
    return path.suffix.lower() == ".gguf" and path.is_file() and is_alone(header(path))
