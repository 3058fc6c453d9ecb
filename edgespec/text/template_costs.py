"""Upper bounds of the cost of Jinja's operators and filters and of string methods, by their arguments."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from jinja2.runtime import LoopContext
from markupsafe import Markup

from .template_budget import ITEM, STEP, TemplateBudget


def is_lazy(value: Any) -> bool:
    """Whether `value` is an iterator, such as the result of the filter `map`."""
    return isinstance(value, Iterator) and not isinstance(value, LoopContext)


def repeated(value: Any, times: Any) -> int:
    """The cost of `value * times`."""
    if not isinstance(times, int) or not isinstance(value, (str, bytes, list, tuple)):
        return 0
    return len(value) * max(times, 0) * (1 if isinstance(value, (str, bytes)) else ITEM)


def largest(form: str) -> int:
    """The largest number in a format string, a width or a precision."""
    return max((int(digits[:12]) for digits in re.findall(r"\d+", form)), default=0)


def text_cost(text: Any, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> int:
    """The cost of the method `name` of `text` in addition to iterating over the text and its arguments."""
    first: Any = args[0] if args else next(iter(kwargs.values()), None)
    if name == "expandtabs":
        tabs: int = text.count(_TAB[type(text)])
        return tabs * (_number(first) if first is not None else 8)
    if name in _WIDENING:
        return _number(first)
    if name == "join":
        return len(text) * (len(first) if hasattr(first, "__len__") else 0)
    if name == "translate":
        values = first.values() if isinstance(first, dict) else [first]
        return len(text) * max((len(value) for value in values if isinstance(value, (str, bytes))), default=1)
    return _search_cost(text, name, first, args[1] if len(args) > 1 else None)


def _search_cost(text: Any, name: str, searched: Any, other: Any) -> int:
    """The same for methods that search `searched` in `text`, or white space if it is not given."""
    found = text.count(searched) if isinstance(searched, (str, bytes)) and searched else len(text) // 2 + 1
    cost: int = STEP * found if name in _PARTING else 0
    if name in _BACKWARDS and isinstance(searched, (str, bytes)):  # these compare at every position
        cost += len(text) * len(searched)
    if name == "replace" and isinstance(other, (str, bytes)):
        cost += (found if searched else len(text) + 1) * len(other)
    return cost


_WIDENING = ("center", "ljust", "rjust", "zfill")
_PARTING = ("split", "rsplit", "splitlines")
_BACKWARDS = ("rsplit", "rfind", "rindex", "rpartition", "strip", "lstrip", "rstrip")
_TAB: dict[type, Any] = {str: "\t", Markup: "\t", bytes: b"\t"}


def format_cost(budget: TemplateBudget, form: str | bytes, values: Any) -> int:
    """The cost of `form % values`: each field may be as long as its number, or as all values together."""
    text = form if isinstance(form, str) else form.decode("latin-1")
    number = largest(text)
    if "*" in text and isinstance(values, tuple):
        number += sum(abs(value) for value in values if isinstance(value, int))
    fields = text.count("%")
    for _ in range(fields):
        budget.weigh(values)
    return fields * number


def _text(value: Any) -> str:
    return value if isinstance(value, str) else str(value)


def _number(value: Any) -> int:
    return abs(value) if isinstance(value, int) else 0


def _indent_cost(_budget: TemplateBudget, of: dict[str, Any]) -> int:
    width = len(of["width"]) if isinstance(of["width"], str) else _number(of["width"])
    return (width + STEP) * (1 + len(_text(of["s"]).splitlines()))


def _replace_cost(_budget: TemplateBudget, of: dict[str, Any]) -> int:
    return _text(of["s"]).count(_text(of["old"])) * len(_text(of["new"]))


def _trim_cost(_budget: TemplateBudget, of: dict[str, Any]) -> int:
    return len(_text(of["value"])) * len(of["chars"] or "")


def _join_cost(budget: TemplateBudget, of: dict[str, Any]) -> int:
    of["value"] = items = list(of["value"])
    budget.weigh(items)
    return len(_text(of["d"])) * len(items)


def _sort_cost(budget: TemplateBudget, of: dict[str, Any]) -> int:
    """The cost of filters that compare each item of their first argument about a dozen times."""
    name = next(each for each in ("value", "iterable", "seq") if each in of)
    if is_lazy(of[name]):
        of[name] = list(of[name])
    for _ in range(16):
        budget.weigh(of[name])
    return 0


def _parsing_cost(_budget: TemplateBudget, of: dict[str, Any]) -> int:
    """The cost of converting digits to a number, quadratic in their count."""
    return len(of["value"]) ** 2 // STEP if isinstance(of["value"], str) else 0


def _json_cost(_budget: TemplateBudget, of: dict[str, Any]) -> int:
    indent, separators = of["indent"], of["separators"] or ()
    if max(len(indent) if isinstance(indent, str) else _number(indent), *map(len, separators), 0) > 64:
        raise OverflowError("tojson takes indents and separators of at most 64 characters")
    return 0


COSTS: dict[str, Callable[[TemplateBudget, dict[str, Any]], int]] = {
    "batch": lambda _, of: STEP * _number(of["linecount"]),
    "center": lambda _, of: _number(of["width"]),
    "dictsort": _sort_cost,
    "filesizeformat": _parsing_cost,
    "float": _parsing_cost,
    "format": lambda budget, of: format_cost(budget, _text(of["value"]), of["kwargs"] or of["args"]),
    "groupby": _sort_cost,
    "indent": _indent_cost,
    "int": _parsing_cost,
    "join": _join_cost,
    "max": _sort_cost,
    "min": _sort_cost,
    "replace": _replace_cost,
    "round": lambda _, of: STEP * _number(of["precision"]),
    "slice": lambda _, of: STEP * _number(of["slices"]),
    "sort": _sort_cost,
    "title": lambda _, of: STEP * len(_text(of["s"])),
    "tojson": _json_cost,
    "trim": _trim_cost,
    "unique": _sort_cost,
    "urlencode": lambda _, of: STEP // 2 * len(_text(of["value"])),
}
