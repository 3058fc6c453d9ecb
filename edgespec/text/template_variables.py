"""Variables that apps give to chat templates: tools, documents and a template's own switches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..errors import OptionError
from ..values import shown

#: Variables that only the runtime sets.
_OWN = ("messages", "tools", "add_generation_prompt", "bos_token", "eos_token")


def checked_variables(tools: Any, others: Any) -> dict[str, Any]:
    """The variables of a template for `tools` and `others`.

    Args:
        tools: a list of descriptions of functions, as in OpenAI's API; None or an empty list is no tools.
        others: further variables by name, with values as in JSON; None for none.

    Raises:
        OptionError: `tools` is not a list of descriptions, or `others` not a dictionary, or it sets a variable that
            belongs to the runtime.
    """
    if not isinstance(tools or (), (list, tuple)) or not all(map(_is_tool, tools or ())):
        raise OptionError(
            f'tools is {shown(tools)}; it must be a list of {{"type": "function", "function": {{"name": ..., '
            '"parameters": ...}}'
        )
    if not isinstance(others or {}, Mapping) or not all(isinstance(name, str) for name in others or {}):
        raise OptionError(f"chat_template_kwargs is {shown(others)}; it must be a dictionary of variables by name")
    if taken := [name for name in _OWN if name in (others or {})]:
        raise OptionError(f"chat_template_kwargs sets {taken[0]!r}, which is not a variable for apps; leave it out")
    return {**(others or {}), **({"tools": list(tools)} if tools else {})}


def _is_tool(tool: Any) -> bool:
    function = tool.get("function") if isinstance(tool, Mapping) else None
    return isinstance(function, Mapping) and isinstance(function.get("name"), str)
