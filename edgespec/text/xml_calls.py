"""Calls whose arguments are written between tags of their own, as Qwen3-Coder does, parsed while the text arrives.

    <tool_call>
    <function=weather>
    <parameter=city>
    Rome
    </parameter>
    </function>
    </tool_call>

OpenAI's API has the arguments as a JSON object. A text is passed on while it arrives; what the function's schema says
is a number, a list or another value is, when it is complete.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from typing import Any

from .call_parser import CallDelta, Delta, Format, State, ToolCallParser
from .stream import undecided

XML = Format(
    ("<tool_call>", "<function="),
    re.compile(r"(?:<tool_call>\s*)?<function=(?P<plain>[^>\n]+)>"),
    ("</tool_call>",),
)
_PARAMETER = re.compile(r"<parameter=([^>\n]+)>(\n?)")
_OPENING, _CLOSING, _END = "<parameter=", "</parameter>", "</function>"
_LONGEST_NAME = 1024  # characters
_WORDS: Mapping[str, str] = {"true": "true", "false": "false", "null": "null", "none": "null"}


def kinds(schema: object) -> frozenset[str]:
    """The types of JSON that a schema says; empty if it says none."""
    if not isinstance(schema, Mapping):
        return frozenset()
    given = schema.get("type")
    found = {each for each in (given if isinstance(given, list) else [given]) if isinstance(each, str)}
    several = (schema.get(name) for name in ("anyOf", "oneOf"))
    return frozenset(found).union(*(kinds(each) for some in several if isinstance(some, list) for each in some))


class XmlCallParser(ToolCallParser):
    """Tells calls from text in one answer.

    Args:
        names: the functions that may be called; a mapping has the JSON schemas of their parameters. A parameter without
            a type is a text.
    """

    def __init__(self, form: Format, names: Collection[str]) -> None:
        super().__init__(form, names)
        self._schemas: Mapping[str, Any] = names if isinstance(names, Mapping) else {}
        self._function = ""
        self._key = ""  # a comma if needed, the name of the parameter, and a colon
        self._kinds = frozenset[str]()

    def _begun(self, match: re.Match[str], out: list[Delta]) -> State:
        self._function = match["plain"]
        return super()._begun(match, out)

    def _arguments(self, out: list[Delta]) -> State | None:
        self._key = ""
        out.append(CallDelta(self.calls, "", "{"))
        return self._parameter

    def _parameter(self, out: list[Delta]) -> State | None:
        """The tag before a parameter, or the one that ends the call."""
        self._held = self._held.lstrip()
        match = _PARAMETER.match(self._held)
        if match is not None:
            if not match[2] and match.end() == len(self._held) and not self._ended:
                return None  # a line break may follow, which is not of the value
            self._held = self._held[match.end() :]
            return self._named(match[1], out)
        if self._is_half_a_tag():
            self._held = "" if self._ended else self._held
            return None
        self._held = self._held.removeprefix(_END)
        out.append(CallDelta(self.calls, "", "}"))
        self.calls += 1
        return self._tail

    def _is_half_a_tag(self) -> bool:
        held = self._held
        if any(each.startswith(held) for each in (_OPENING, _END)):
            return held != _END
        return held.startswith(_OPENING) and len(held) < _LONGEST_NAME and "\n" not in held

    def _named(self, name: str, out: list[Delta]) -> State:
        schema = self._schemas.get(self._function)
        properties = schema.get("properties") if isinstance(schema, Mapping) else None
        self._kinds = kinds(properties.get(name)) if isinstance(properties, Mapping) else frozenset()
        self._key = f"{', ' if self._key else ''}{json.dumps(name, ensure_ascii=False)}: "
        if self._kinds - {"string"}:
            return self._value
        out.append(CallDelta(self.calls, "", f'{self._key}"'))
        return self._text

    def _text(self, out: list[Delta]) -> State | None:
        """A text, up to the closing tag and the line break before it."""
        at = self._held.find(_CLOSING)
        sure = self._held[:at].removesuffix("\n") if at >= 0 else self._held
        if at < 0 and not self._ended:
            sure = sure[: len(sure) - undecided(sure, (f"\n{_CLOSING}", _CLOSING))]
        if sure:
            out.append(CallDelta(self.calls, "", json.dumps(sure, ensure_ascii=False)[1:-1]))
        if at < 0:
            self._held = self._held[len(sure) :]
            return None
        self._held = self._held[at + len(_CLOSING) :]
        out.append(CallDelta(self.calls, "", '"'))
        return self._parameter

    def _value(self, out: list[Delta]) -> State | None:
        """A value that is no text."""
        at = self._held.find(_CLOSING)
        if at < 0:
            return None
        written = _as_json(self._held[:at].removesuffix("\n"), self._kinds)
        out.append(CallDelta(self.calls, "", f"{self._key}{written}"))
        self._held = self._held[at + len(_CLOSING) :]
        return self._parameter

    def flush(self) -> list[Delta]:
        cut = self._state == self._value
        if cut:  # what is there of it is no argument, and no text of the answer
            self._held = ""
        return super().flush()


def _as_json(text: str, kinds: Collection[str]) -> str:
    """A parameter in JSON. What is no value of JSON is a text, as it is where both are possible."""
    bare = text.strip()
    if "string" in kinds:
        return "null" if "null" in kinds and bare.lower() in ("null", "none") else json.dumps(text, ensure_ascii=False)
    try:
        return json.dumps(json.loads(_WORDS.get(bare.lower(), bare)), ensure_ascii=False)
    except (ValueError, RecursionError):
        return json.dumps(text, ensure_ascii=False)
