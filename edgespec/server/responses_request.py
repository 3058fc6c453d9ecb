"""Requests of OpenAI's Responses API as values. No history is kept: `previous_response_id` is refused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..text.template import Message
from . import constraints, options
from .errors import Refused
from .fields import Fields
from .messages import MOST, text_of
from .openai_requests import EFFORTS, check_model, unsupported
from .settings import Settings
from .tools import Tools, tools
from .wanted import Conversation, Wanted

_SILENT = ("reasoning", "item_reference")  # items that add nothing to the prompt


@dataclass(frozen=True, slots=True)
class ResponsesRequest:
    """What to compute, and how to answer.

    Args:
        stream: whether as server-sent events.
        shown: fields of the request that the response repeats.
        tools: those that the model may call.
    """

    wanted: Wanted
    stream: bool
    shown: Mapping[str, Any]
    tools: Sequence[Mapping[str, Any]] = ()


def responses_request(fields: Fields, settings: Settings, template: str) -> ResponsesRequest:
    """A request of `/v1/responses`.

    Args:
        template: the model's chat template.

    Raises:
        Refused: a field is wrong, or would change the answer and is not supported.
    """
    check_model(fields, settings)
    for name in ("previous_response_id", "conversation", "prompt", "background"):
        if fields.raw(name):
            raise unsupported(name)
    called = _tools(fields, template)
    effort = fields.below("reasoning").raw("effort")
    think = EFFORTS.get(effort, "auto") if isinstance(effort, str) else "auto"
    prompt = Conversation(_messages(fields), think, called.described)
    speculation, spans = options.extension(fields)
    wanted = Wanted(
        prompts=(prompt,),
        key=prompt.key,
        sampling=options.sampling(fields, settings),
        max_tokens=options.most_tokens(fields, settings, "max_output_tokens"),
        speculation=speculation,
        grammar=constraints.grammar(fields, _format(fields)),
        spans=spans,
    )
    shown = {
        "instructions": fields.raw("instructions"),
        "max_output_tokens": wanted.max_tokens,
        "metadata": fields.raw("metadata") or {},
        "temperature": wanted.sampling.temperature,
        "top_p": wanted.sampling.top_p,
        "text": {"format": {"type": "text"}} if wanted.grammar is None else fields.raw("text"),
        "parallel_tool_calls": fields.flag("parallel_tool_calls", default=True),
        "tool_choice": _shown_choice(fields.raw("tool_choice")),
        "tools": [_shown(each) for each in fields.items("tools", most=1024)],
    }
    if called.grammar is not None and wanted.grammar is not None:
        raise Refused(
            "the answer cannot be held to a format and call tools; send tool_choice none, or no format", param="tools"
        )
    wanted = replace(wanted, grammar=called.grammar or wanted.grammar)
    return ResponsesRequest(wanted, fields.flag("stream"), shown, called.described)


def _tools(fields: Fields, template: str) -> Tools:
    """The tools as chat completions have them: there the fields of a function are one level deeper."""
    given = [_nested(each) for each in fields.items("tools", most=1024)]
    choice = fields.raw("tool_choice")
    return tools(Fields({**fields.values, "tools": given, "tool_choice": _nested(choice)}), template)


def _nested(given: Any) -> Any:
    if not isinstance(given, Mapping) or given.get("type") != "function" or "function" in given:
        return given
    return {"type": "function", "function": {name: value for name, value in given.items() if name != "type"}}


def _shown(tool: Mapping[str, Any]) -> dict[str, Any]:
    function = tool.get("function", tool)
    return {"parameters": None, "strict": None, **function, "type": "function"}


def _shown_choice(choice: Any) -> Any:
    """The choice as this API has it, also of a client that sends that of chat completions."""
    if isinstance(choice, Mapping):
        return {"type": "function", **choice.get("function", {"name": choice.get("name")})}
    return {"any": "required"}.get(choice, choice) if choice else "auto"


def _format(fields: Fields) -> Fields:
    """The format of the text as chat completions have it: there a schema is one level deeper."""
    given = fields.below("text").below("format")
    return Fields({**given.values, "json_schema": {"schema": given.raw("schema")}}, fields.param("text.format"))


def _messages(fields: Fields) -> list[Message]:
    system = fields.text("instructions")
    found: list[Message] = [{"role": "system", "content": system}] if system else []
    if isinstance(fields.raw("input"), str):
        return [*found, {"role": "user", "content": fields.text("input")}]
    items = fields.items("input", most=MOST)
    if not items:
        raise fields.wrong("input", "a text, or a list of items")
    for number, each in enumerate(items):
        item = Fields(each, f"input[{number}]")
        if item.text("type", "message") not in _SILENT:
            _add(found, _message(item))
    return found


def _add(found: list[Message], message: Message) -> None:
    """Add a message; a call joins those of the same turn, as chat templates expect."""
    calls = message.get("tool_calls")
    if calls and found and found[-1]["role"] == "assistant":
        found[-1] = {**found[-1], "tool_calls": [*found[-1].get("tool_calls", ()), *calls]}
    else:
        found.append(message)


def _message(item: Fields) -> Message:
    kind = item.text("type", "message")
    if kind == "message":
        role = item.text("role")
        if not role:
            raise item.wrong("role", "system, developer, user or assistant")
        return {"role": "system" if role == "developer" else role, "content": text_of(item, "content")}
    if kind == "function_call":
        function = {"name": item.text("name"), "arguments": item.text("arguments", "{}")}
        call = {"id": item.text("call_id"), "type": "function", "function": function}
        return {"role": "assistant", "content": None, "tool_calls": [call]}
    if kind == "function_call_output":
        return {"role": "tool", "tool_call_id": item.text("call_id"), "content": text_of(item, "output")}
    raise Refused(f"{item.param('type')} is {kind[:40]!r}, and this server reads only text and calls", param="input")
