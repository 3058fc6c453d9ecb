"""Tools of a request: which the model may call, whether it must, and the grammar that holds calls to their schemas."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import GrammarError
from ..grammar import Grammar
from ..text.call_parser import CallDelta, ContentDelta, Delta
from ..text.tool_calls import format_of
from .errors import Refused
from .fields import Fields

_MOST = 1024


@dataclass(frozen=True, slots=True)
class Tools:
    """The tools of a request.

    Args:
        described: those that the model is told of.
        grammar: what the answer may be; None where its calls are not held to anything.
    """

    described: Sequence[Mapping[str, Any]] = ()
    grammar: Grammar | None = None


def tools(fields: Fields, template: str) -> Tools:
    """The fields `tools`, `tool_choice` and `parallel_tool_calls`.

    Args:
        template: the chat template, which says how the model writes calls.

    Raises:
        Refused: a field is wrong, or a call is required of a model whose calls have no known form.
    """
    given = fields.items("tools", most=_MOST)
    names = [_name(Fields(tool, f"tools[{n}]")) for n, tool in enumerate(given)]
    required, named = _choice(fields)
    if named is not None:
        if named not in names:
            raise Refused(f"tool_choice names {named[:80]!r}, which is none of the tools", param="tool_choice")
        given = [given[names.index(named)]]
    if not given or required is None:
        if required:
            raise Refused("tool_choice requires a call, but there are no tools; send some", param="tools")
        return Tools()
    style = _style(template)
    if style is None:
        if required:
            raise Refused(
                "tool_choice requires a call, but no grammar is known for the calls of this model's chat template; "
                "send auto",
                param="tool_choice",
            )
        return Tools(given)
    parallel = named is None and fields.flag("parallel_tool_calls", default=True)
    try:
        return Tools(given, Grammar.tools(given, required=required, parallel=parallel, style=style))
    except GrammarError as error:
        raise Refused(str(error), param="tools") from None


class CallChunks:
    """Writes calls as OpenAI's API has them in the chunks of a stream: an id and the name first, then arguments."""

    def __init__(self) -> None:
        self.calls: list[dict[str, Any]] = []  #: those so far, whole

    def deltas(self, parts: Sequence[Delta]) -> tuple[str, list[dict[str, Any]]]:
        """The text and the parts of calls in `parts`."""
        text = "".join(part.text for part in parts if isinstance(part, ContentDelta))
        return text, [self._delta(part) for part in parts if isinstance(part, CallDelta)]

    def _delta(self, part: CallDelta) -> dict[str, Any]:
        if part.call < len(self.calls):
            self.calls[part.call]["function"]["arguments"] += part.arguments
            return {"index": part.call, "function": {"arguments": part.arguments}}
        function = {"name": part.name, "arguments": part.arguments}
        self.calls.append({"id": f"call_{secrets.token_hex(12)}", "type": "function", "function": function})
        return {"index": part.call, **self.calls[-1], "function": dict(function)}


def _choice(fields: Fields) -> tuple[bool | None, str | None]:
    """Whether a call is required, None where there must be none, and the name of the function that must be called."""
    choice = fields.raw("tool_choice")
    if isinstance(choice, Mapping):
        function = fields.below("tool_choice").below("function")
        if not function.text("name"):
            raise fields.wrong(
                "tool_choice", 'auto, none, required, or {"type": "function", "function": {"name": ...}}'
            )
        return True, function.text("name")
    known = {"": False, "auto": False, "none": None, "required": True, "any": True}
    word = fields.text("tool_choice")
    if word not in known:
        raise fields.wrong("tool_choice", "auto, none, required, or a function")
    return known[word], None


def _name(tool: Fields) -> str:
    kind = tool.text("type", "function")
    if kind != "function":
        raise Refused(f"{tool.param('type')} is {kind[:40]!r}; only functions can be called", param="tools")
    name = tool.below("function").text("name")
    if not name:
        raise Refused(f"{tool.param('function.name')} is missing; every tool needs one", param="tools")
    return name


def _style(template: str) -> str | None:
    """How a model with this template writes calls, by the names of `Grammar.tools`; None if no grammar knows it."""
    found = format_of(template)
    if found is None:
        return None
    if "<tool_call>" in found.openings:
        return "qwen3-coder" if "<function=" in found.openings else "hermes"
    if "<|python_tag|>" in found.openings:
        return "llama3"
    return "mistral" if "[TOOL_CALLS]" in found.openings and "[ARGS]" not in template else None
