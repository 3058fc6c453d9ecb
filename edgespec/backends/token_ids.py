"""Checks of token ids from an app, before an engine uses them."""

from __future__ import annotations

from collections.abc import Iterable
from operator import index
from typing import Any

from ..errors import OptionError


def checked_tokens(tokens: Iterable[Any], size: int) -> list[int]:
    """`tokens` as ints. NumPy's integers are accepted, booleans and floats are not.

    Args:
        size: the size of the vocabulary.

    Raises:
        OptionError: one is not a token of the vocabulary; the message names the first.
    """
    if isinstance(tokens, str | bytes | bytearray) or not isinstance(tokens, Iterable):
        raise OptionError(f"tokens are a sequence of whole numbers, not {type(tokens).__name__}")
    return [_checked(token, size) for token in tokens]


def _checked(token: Any, size: int) -> int:
    try:
        number = index(token)
    except TypeError:
        number = None
    if number is None or isinstance(token, bool):
        shown = repr(token) if isinstance(token, bool | float | str) else type(token).__name__
        raise OptionError(f"no token {shown:.80}: tokens are whole numbers, in this vocabulary from 0 to {size - 1}")
    if not 0 <= number < size:
        shown = str(number) if number.bit_length() < 64 else f"of {number.bit_length()} bits"
        raise OptionError(f"no token {shown}: the vocabulary has tokens 0 to {size - 1}")
    return number
