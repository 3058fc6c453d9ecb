"""Requests of OpenAI's Responses API as values. No history is kept: `previous_response_id` is refused."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..text.template import Message
from . import constraints, options
from .errors import Refused
from .fields import Fields
from .messages import MOST, text_of
from .openai_requests import EFFORTS, check_model, unsupported
from .settings import Settings
from .wanted import Conversation, Wanted

_SILENT = ("reasoning", "item_reference")  # items that add nothing to the prompt


@dataclass(frozen=True, slots=True)
class ResponsesRequest:
    """What to compute, and how to answer.

    Args:
        stream: whether as server-sent events.
        shown: fields of the request that the response repeats.
    """

    wanted: Wanted
    stream: bool
    shown: Mapping[str, Any]


def responses_request(fields: Fields, settings: Settings) -> ResponsesRequest:
    """A request of `/v1/responses`. Raises Refused."""
    check_model(fields, settings)
    for name in ("previous_response_id", "conversation", "prompt", "background"):
        if fields.raw(name):
            raise unsupported(name)
    if fields.items("tools", most=1024) and fields.raw("tool_choice") != "none":
        raise unsupported("tools")
    effort = fields.below("reasoning").raw("effort")
    think = EFFORTS.get(effort, "auto") if isinstance(effort, str) else "auto"
    prompt = Conversation(_messages(fields), think)
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
    }
    return ResponsesRequest(wanted, fields.flag("stream"), shown)


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
            found.append(_message(item))
    return found


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
