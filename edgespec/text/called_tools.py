"""Earlier tool calls in messages, in the form that a chat template reads.

OpenAI's API has the arguments of a call as a JSON text. Most templates write the object that it stands for, and some
the text as it is.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..errors import TemplateError

_ARGUMENT = "edgespec_argument"
_QUESTION = {"role": "user", "content": "Hello"}
_ASKS_FOR_NONE = re.compile(r"""content['"]?\]?\s+is\s+(not\s+)?none""").search


class CalledTools:
    """What one template reads of tool calls.

    Args:
        source: the template.
        render: renders messages with it, and raises TemplateError where it refuses them.
    """

    def __init__(self, source: str, render: Callable[[Sequence[Mapping[str, Any]]], str]) -> None:
        self._render = render
        self._objects: bool | None = None
        #: Whether a content that is None must be there as None: the template tests for it. Others would write it.
        self.keeps_none = _ASKS_FOR_NONE(source) is not None

    def prepared(self, message: Mapping[str, Any]) -> Mapping[str, Any]:
        """`message` with the arguments of its calls as the template reads them."""
        calls = message.get("tool_calls")
        if not isinstance(calls, (list, tuple)):
            return message
        if self._objects is None:
            self._objects = self._writes_objects()
        return {**message, "tool_calls": [self._call(call) for call in calls]}

    def _writes_objects(self) -> bool:
        """Whether the template writes arguments that are an object, as JSON or in a form of its own.

        A template for texts raises an error, or writes the object as Python does. One that refuses both says nothing.
        """
        written = self._rendered({_ARGUMENT: "value"})
        if written is None:
            return self._rendered("{}") is None
        return f"'{_ARGUMENT}'" not in written

    def _rendered(self, arguments: Any) -> str | None:
        """A call with these arguments as the template writes it; None if it refuses it."""
        call = {"id": "call00000", "type": "function", "function": {"name": "f", "arguments": arguments}}
        messages: list[Mapping[str, Any]] = [_QUESTION, {"role": "assistant", "content": None, "tool_calls": [call]}]
        try:
            return self._render(messages)
        except TemplateError:
            return None

    def _call(self, call: Any) -> Any:
        function = call.get("function") if isinstance(call, Mapping) else None
        if not isinstance(function, Mapping) or "arguments" not in function:
            return call
        given = function["arguments"]
        arguments = _parsed(given) if self._objects else given if isinstance(given, str) else _written(given)
        return {**call, "function": {**function, "arguments": arguments}}


def _parsed(arguments: Any) -> Any:
    """The object that a JSON text stands for; what is none, as it is."""
    try:
        value = json.loads(arguments) if isinstance(arguments, str) else arguments
    except (ValueError, RecursionError):
        return arguments
    return value if isinstance(value, dict) else arguments


def _written(arguments: Any) -> Any:
    try:
        return json.dumps(arguments, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError):
        return arguments  # what JSON cannot represent is refused where messages are copied
