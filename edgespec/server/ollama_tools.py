"""Tools in Ollama's chat: its messages as the chat template reads them, and calls as its clients do."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from ..text.call_parser import CallDelta, ContentDelta, Delta, ToolCallParser
from ..text.template import Message
from .errors import Refused
from .fields import Fields
from .messages import messages


def conversation(fields: Fields) -> list[Message]:
    """The field `messages`, with the ids of calls that templates read. A result belongs to the first call of its
    `tool_name` that has none yet, and without a name to the first call. Raises Refused."""
    found = messages(fields)
    raw: list[Mapping[str, Any]] = fields.raw("messages")
    open_calls: list[Mapping[str, Any]] = []
    count = 0
    for number, given in enumerate(raw):
        message = found[number]
        without_pictures(Fields(given, fields.param(f"messages[{number}]")))
        if message.get("tool_calls"):
            place = fields.param(f"messages[{number}].tool_calls")
            calls = [_identified(Fields(call, place), count + n) for n, call in enumerate(message["tool_calls"])]
            count += len(calls)
            open_calls += calls
            message = {**message, "tool_calls": calls}
        if message["role"] == "tool":
            message = _result(message, Fields(given, fields.param(f"messages[{number}]")), open_calls)
        if given.get("thinking"):
            message = {**message, "reasoning_content": Fields(given, f"messages[{number}]").text("thinking")}
        found[number] = message
    return found


def without_pictures(fields: Fields) -> None:
    """Refused if there are pictures, which the model would not see."""
    if fields.raw("images"):
        raise Refused("this model reads only text; leave the images out", param=fields.param("images"))


class WholeCalls:
    """The text and the whole calls of one answer, while it arrives.

    Args:
        parser: of the calls; None where there are no tools.
    """

    def __init__(self, parser: ToolCallParser | None) -> None:
        self._parser = parser
        self._begun = False
        self._number = 0
        self._name = ""
        self._arguments = ""

    def push(self, text: str) -> tuple[str, list[dict[str, Any]]]:
        """Add the text of a round; the text without calls, and the calls that have ended."""
        return self._told([ContentDelta(text)] if self._parser is None else self._parser.push(text))

    def flush(self) -> tuple[str, list[dict[str, Any]]]:
        """The rest, at the end of the answer. A call that was cut off is left out, as no object stands for it."""
        return self._told([] if self._parser is None else self._parser.flush())

    def _told(self, parts: Sequence[Delta]) -> tuple[str, list[dict[str, Any]]]:
        texts: list[str] = []
        calls: list[dict[str, Any]] = []
        for part in parts:
            if isinstance(part, CallDelta) and not part.name:
                self._arguments += part.arguments
                continue
            self._end(texts, calls)
            if isinstance(part, CallDelta):
                self._begun, self._number = True, part.call
                self._name, self._arguments = part.name, part.arguments
            else:
                texts.append(part.text)
        if self._begun and self._parser is not None and self._parser.calls > self._number:
            self._end(texts, calls)
        return "".join(texts), calls

    def _end(self, texts: list[str], calls: list[dict[str, Any]]) -> None:
        """The end of a call. One whose arguments are no JSON is text, as no object stands for it."""
        if not self._begun:
            return
        self._begun = False
        try:
            arguments = json.loads(self._arguments)
        except (ValueError, RecursionError):
            texts.append(f'{{"name": {json.dumps(self._name)}, "arguments": {self._arguments}}}')
            return
        calls.append({"function": {"name": self._name, "arguments": arguments}})


def _identified(call: Fields, number: int) -> dict[str, Any]:
    """A call with an id of nine letters and digits, as Mistral's templates demand."""
    if not call.below("function").text("name"):
        raise call.wrong("function", 'a function with a name, as {"name": ..., "arguments": {...}}')
    return {"id": f"call{number:05}", "type": "function", **call.values}


def _result(message: Message, given: Fields, open_calls: list[Mapping[str, Any]]) -> Message:
    name = given.text("tool_name") or given.text("name")
    answered = next((call for call in open_calls if name in ("", call["function"]["name"])), None)
    if answered is None:
        return {**message, "name": name} if name else message
    open_calls.remove(answered)
    return {**message, "name": answered["function"]["name"], "tool_call_id": answered["id"]}
