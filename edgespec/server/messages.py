"""The messages of a request as the chat template reads them."""

from __future__ import annotations

from typing import Any

from ..text.template import Message
from .errors import Refused
from .fields import Fields

MOST = 10_000  #: messages
_ROLES = {"developer": "system", "function": "tool"}
_KEPT = ("name", "tool_calls", "tool_call_id", "reasoning_content")


def messages(fields: Fields) -> list[Message]:
    """The field `messages`. Raises Refused for what is no list of messages of text."""
    given = fields.items("messages", most=MOST)
    if not given:
        raise fields.wrong("messages", "a list of messages, the last of the user")
    return [_message(Fields(each, fields.param(f"messages[{i}]"))) for i, each in enumerate(given)]


def _message(message: Fields) -> Message:
    role = message.text("role")
    if not role:
        raise message.wrong("role", "system, developer, user, assistant or tool")
    calls = message.items("tool_calls", most=1024)
    content = None if calls and not message.has("content") else text_of(message, "content")
    kept = {name: message.raw(name) for name in _KEPT if message.has(name)}
    return {"role": _ROLES.get(role, role), "content": content, **kept}


def text_of(fields: Fields, name: str) -> str:
    """A field that is a text, or a list of parts of text, which are joined by newlines."""
    value = fields.raw(name)
    if not isinstance(value, list):
        if value is None:
            raise fields.wrong(name, "a text, or a list of parts of text")
        return fields.text(name)
    return "\n".join(_part(part, f"{fields.param(name)}[{i}]") for i, part in enumerate(value))


def _part(value: Any, path: str) -> str:
    if isinstance(value, str):
        return value
    part = Fields(value, path)
    kind = part.text("type", "text")
    for name in ("text", "refusal"):
        if part.has(name):
            return part.text(name)
    raise Refused(f"{path} is of the type {kind!r}, and this model reads only text; leave it out", param=path)
