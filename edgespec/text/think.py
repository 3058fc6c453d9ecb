"""The variables by which chat templates turn a model's thinking on and off."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any

from ..errors import OptionError
from ..values import shown

#: "auto" is the template's default. The last three are efforts: they are "on" where a template has none.
THINK = ("auto", "on", "off", "low", "medium", "high")

_EFFORT = "reasoning_effort"
_ON: dict[str, Any] = {"enable_thinking": True, "thinking": True, "thinking_mode": "enabled"}
_OFF: dict[str, Any] = {"enable_thinking": False, "thinking": False, "thinking_mode": "disabled", "thinking_budget": 0}
#: What templates call the least effort. gpt-oss cannot do without reasoning: its least effort is "low".
_LEAST = ("none", "no_think", "minimal", "low")


def checked_think(think: Any) -> str:
    """`think`, if it is one of `THINK`. Raises OptionError."""
    if not isinstance(think, str) or think not in THINK:
        raise OptionError(f"think is {shown(think)}; it must be one of {', '.join(THINK)}")
    return think


def variables(think: str, template: str) -> dict[str, Any]:
    """The variables of a template for `think`; templates ignore those that they do not know.

    Args:
        think: one of `THINK`.
        template: the source of the template, which says what it calls the least effort.
    """
    if think == "auto":
        return {}
    if think == "on":
        return dict(_ON)
    if think == "off":
        return {**_OFF, _EFFORT: next((word for word in _LEAST if re.search(f"['\"]{word}['\"]", template)), "low")}
    return {**_ON, _EFFORT: think}


def has_switch(names: Collection[str]) -> bool:
    """Whether a template that reads the variables `names` reads one of these."""
    return not {*_ON, *_OFF, _EFFORT}.isdisjoint(names)
