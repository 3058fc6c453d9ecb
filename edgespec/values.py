"""Checks of arguments, options and values from files: a wrong type or a value out of range raises OptionError.

Numbers of equal value are converted: 20.0 and NumPy's 20 to an int, 1 to 1.0. Booleans and strings are refused.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from numbers import Integral, Real
from typing import Any, TypeVar

from .errors import OptionError

T = TypeVar("T")

MOST = (1 << 31) - 1  #: the default upper limit of a whole number
_LONGEST = 80  # characters of a value in a message


def shown(value: object) -> str:
    """`value` for a message, on one line and at most 80 characters long."""
    try:
        text = " ".join(repr(value).split())
    except Exception:  # noqa: BLE001 - Python refuses to print an int of more than 4300 digits, and a class may raise
        text = f"{type(value).__name__} that cannot be shown"
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def whole(name: str, value: Any, low: int, high: int = MOST) -> int:
    """`value` as an int, from `low` to `high`.

    Raises:
        OptionError: it is not a whole number, or out of range; the message begins with `name`.
    """
    if isinstance(value, Real) and not isinstance(value, Integral | bool) and _float(value).is_integer():
        value = int(_float(value))
    if not isinstance(value, Integral) or isinstance(value, bool):
        raise OptionError(f"{name} is {shown(value)}; it must be a whole number, {_range(low, high)}")
    number = int(value)
    if not low <= number <= high:
        bound = f"{low} or more" if number < low and high >= MOST else _range(low, high)
        raise OptionError(f"{name} is {shown(number)}; it must be {bound}")
    return number


def real(name: str, value: Any, low: float, high: float) -> float:
    """`value` as a float, from `low` to `high`. Raises as `whole` does."""
    if not isinstance(value, Real) or isinstance(value, bool):
        raise OptionError(f"{name} is {shown(value)}; it must be a number, {_range(low, high)}")
    number = _float(value)
    if not low <= number <= high:
        raise OptionError(f"{name} is {shown(value)}; it must be {_range(low, high)}")
    return number


def texts(name: str, value: Any) -> tuple[str, ...]:
    """`value`, a sequence of strings, as a tuple. Raises as `whole` does."""
    if not isinstance(value, Sequence) or isinstance(value, str) or not all(isinstance(each, str) for each in value):
        raise OptionError(f"{name} is {shown(value)}; it must be a list of texts")
    return tuple(value)


def instance(name: str, value: Any, kind: type[T]) -> T:
    """`value`, if it is an instance of `kind`. Raises as `whole` does."""
    if not isinstance(value, kind):
        raise OptionError(f"{name} is {shown(value)}; it must be a {kind.__name__}")
    return value


def _float(value: Real) -> float:
    try:
        return float(value)
    except OverflowError:  # an int of 400 digits
        return math.inf


def _range(low: float, high: float) -> str:
    first, last = (str(each) if isinstance(each, int) else f"{each:g}" for each in (low, high))
    return f"from {first} to {last}"
