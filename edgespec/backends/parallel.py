"""Models that guess several tokens in one pass (PARD), by the header of their file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol, runtime_checkable

#: Keys of the token that stands for one not known: llama.cpp's, and that of ONNX models.
GGUF_MASK, ONNX_MASK = "tokenizer.ggml.mask_token_id", "edgespec.mask_token"
GUESSES = "edgespec.parallel"  #: the key of the number of guesses
MOST = 64  #: guesses of a pass


class Parallel(NamedTuple):
    """How a model guesses several tokens in one pass.

    Args:
        mask: the token that stands for one not known; no text has it.
        guesses: tokens that a pass guesses at most.
    """

    mask: int
    guesses: int


@runtime_checkable
class ParallelModel(Protocol):
    """A further member of a model that may guess several tokens in one pass."""

    @property
    def parallel(self) -> Parallel | None:
        """How it does that; None if it does not."""
        ...


def parallel_of(model: object) -> Parallel | None:
    """`ParallelModel.parallel`; None for other models."""
    return model.parallel if isinstance(model, ParallelModel) else None


def read(fields: Mapping[str, Any], mask_key: str, vocabulary: int) -> Parallel | None:
    """What a header says, None if the model guesses one token a pass.

    A mask token alone says nothing: models that fill gaps in a text have one, too.

    Args:
        fields: of the header; numbers may be text.
        vocabulary: the number of tokens.

    Raises:
        ValueError: the header contradicts itself.
    """
    if GUESSES not in fields:
        return None
    guesses, mask = _number(fields[GUESSES]), _number(fields.get(mask_key))
    if not 1 <= guesses <= MOST:
        raise ValueError(f"{GUESSES} is {str(fields[GUESSES])[:40]!a}, not a number of guesses from 1 to {MOST}")
    if not 0 <= mask < vocabulary:
        raise ValueError(
            f"{GUESSES} needs a mask token, and {mask_key} is {str(fields.get(mask_key))[:40]!a}, not one of "
            f"{vocabulary} tokens"
        )
    return Parallel(mask, guesses)


def _number(value: Any) -> int:
    """A whole number that may be text; -1 for all else."""
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 12:
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else -1
