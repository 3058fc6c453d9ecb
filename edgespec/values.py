"""Checks of what an app, an option or a file gives: what is not of its kind, or out of range, is an OptionError.

Numbers that say the same are taken: 20.0 and NumPy's 20 for a whole number, 1 for 1.0. Truth values and texts are not.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from numbers import Integral, Real
from typing import Any, TypeVar

from .errors import OptionError

T = TypeVar("T")

MOST = (1 << 31) - 1  #: the limit of a whole number that has none of its own
_LONGEST = 80  # characters of a value in a message


def shown(value: object) -> str:
    """`value` for a message: on one line, and short whatever it is."""
    try:
        text = " ".join(repr(value).split())
    except Exception:  # noqa: BLE001 - Python writes no int of more than 4300 digits, and a stranger's class may fail
        text = f"{type(value).__name__} that cannot be shown"
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def whole(name: str, value: Any, low: int, high: int = MOST) -> int:
    """`value` as an int, from `low` to `high`.

    Raises:
        OptionError: it is no whole number, or out of range; the message begins with `name`.
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
    """`value` as a tuple of texts. Raises as `whole` does."""
    if not isinstance(value, Sequence) or isinstance(value, str) or not all(isinstance(each, str) for each in value):
        raise OptionError(f"{name} is {shown(value)}; it must be a list of texts")
    return tuple(value)


def instance(name: str, value: Any, kind: type[T]) -> T:
    """`value`, if it is a `kind`. Raises as `whole` does."""
    if not isinstance(value, kind):
        raise OptionError(f"{name} is {shown(value)}; it must be a {kind.__name__}")
    return value


def _float(value: Real) -> float:
    try:
        return float(value)
    except OverflowError:  # an int of 400 digits
        return math.inf


def _range(low: float, high: float) -> str:
    return f"from {low:g} to {high:g}"
