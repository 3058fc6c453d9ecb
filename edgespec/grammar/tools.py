"""Calls of tools as a grammar: text is free up to a call, whose name and arguments are held to the tool's schema.

Formats are those of chat templates: Hermes and Qwen write JSON between tags, Llama 3 bare JSON, Mistral a list of JSON
after a token. Qwen3-Coder writes each argument between tags of its own.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import GrammarError
from ..text.xml_calls import kinds
from ..values import shown

_TEXT = "TEXT: /(.|\\n)*/\n"
_TAG_END = "\n</parameter>\n"


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """How a family of models writes calls: `trigger`, then `opening`, calls, `closing`.

    Args:
        trigger: the text, or the label of the special token, before calls; empty where a call is the whole answer.
        opening: text between the trigger and the first call.
        name: text before the name of a tool, a JSON string.
        arguments: text between the name and the arguments.
        end: text after the arguments.
        separator: between two calls; None if each begins with the trigger, or there is only one.
        closing: text after the calls.
        tagged: whether each argument is between tags, `<parameter=NAME>`, instead of in one JSON object. Then texts are
            free, unless the schema lists them, and the arguments have the order of the schema.
    """

    trigger: str
    opening: str
    name: str
    arguments: str
    end: str
    separator: str | None
    closing: str
    tagged: bool = False


FORMATS: Mapping[str, ToolFormat] = {
    "hermes": ToolFormat("<tool_call>", "\n", '{"name": ', ', "arguments": ', "}", None, "\n</tool_call>"),
    "llama3": ToolFormat("", "", '{"name": ', ', "parameters": ', "}", None, ""),
    "mistral": ToolFormat("[TOOL_CALLS]", " [", '{"name": ', ', "arguments": ', "}", ", ", "]"),
    "qwen3-coder": ToolFormat(
        "<tool_call>", "\n", "<function=", ">\n", "</function>", None, "\n</tool_call>", tagged=True
    ),
}


def tool_rules(tools: Sequence[Mapping[str, Any]], form: ToolFormat, *, required: bool, parallel: bool) -> str:
    """The grammar of answers that may call `tools`, in Lark; `until_trigger` and `trigger` are left to the binding.

    Args:
        tools: as in OpenAI's API, {"type": "function", "function": {"name", "parameters"}}, or the inner object.
        required: whether the answer is a call; else it is text in which calls may be.
        parallel: whether there may be several.

    Raises:
        GrammarError: a tool without a name or with parameters that are no schema, or there is none.
    """
    if isinstance(tools, str) or not isinstance(tools, Sequence) or not tools:
        raise GrammarError(f"tools is {shown(tools)}; it must be a list of at least one tool")
    calls = [_call(tool, form) for tool in tools]
    rules = f"tagged_text[lazy]: TEXT {_quoted(_TAG_END)}\n" if form.tagged else ""
    rules += "".join(f"call_{n}: {call}\n" for n, call in enumerate(calls))
    call = " | ".join(f"call_{n}" for n in range(len(calls)))
    more = f" ({_quoted(form.separator)} call)*" if parallel and form.separator is not None else ""
    rules += f"call: {call}\ncalls: {_quoted(form.opening)} call{more} {_quoted(form.closing)}\n"
    return f"{_start(form, required=required, parallel=parallel)}{rules}"


def _start(form: ToolFormat, *, required: bool, parallel: bool) -> str:
    if not form.trigger:
        # Text that begins as a call does must be one.
        return "start: calls\n" if required else "start: calls | FREE\nFREE: /([^{](.|\\n)*)?/\n"
    again = parallel and form.separator is None
    if required:
        return f"start: trigger calls{' (GAP trigger calls)*' if again else ''}\nGAP: /\\n?/\n"
    return f"start: (until_trigger calls){'*' if again else '?'} TEXT\n"


def trigger_rules(trigger: str, token: int | None) -> str:
    """The rules `trigger` and `until_trigger`: by text, or by a special token of the vocabulary."""
    if token is None:
        return f"trigger: {_quoted(trigger)}\nuntil_trigger[lazy]: TEXT {_quoted(trigger)}\n{_TEXT}"
    return f"trigger: <[{token}]>\nuntil_trigger: TEXT <[{token}]>\n{_TEXT}"


def _call(tool: Any, form: ToolFormat) -> str:
    inner = tool.get("function", tool) if isinstance(tool, Mapping) else None
    name = inner.get("name") if isinstance(inner, Mapping) else None
    if not isinstance(inner, Mapping) or not isinstance(name, str) or not name:
        raise GrammarError(f'a tool is {shown(tool)}; expected {{"name": ..., "parameters": a JSON Schema}}')
    schema = inner.get("parameters") or {"type": "object"}
    if not isinstance(schema, Mapping):
        raise GrammarError(f"the parameters of the tool {name!r} are {shown(schema)}; they must be a JSON Schema")
    try:
        if form.tagged:
            arguments = " ".join(_tagged(schema))
            return f"{_quoted(form.name + name + form.arguments)} {arguments} {_quoted(form.end)}"
        before = _quoted(f"{form.name}{json.dumps(name)}{form.arguments}")
        return f"{before} {_held(schema)} {_quoted(form.end)}"
    except (TypeError, ValueError, RecursionError) as error:
        raise GrammarError(f"the tool {name!r} cannot be written as JSON: {error}; give dicts") from error


def _tagged(schema: Mapping[str, Any]) -> Iterator[str]:
    """The arguments between tags."""
    properties, required = schema.get("properties") or {}, schema.get("required") or ()
    if not isinstance(properties, Mapping) or not isinstance(required, Sequence):
        raise GrammarError("the parameters of a tool must be a JSON Schema with properties")
    for name, each in properties.items():
        opening, end = _quoted(f"<parameter={name}>\n"), _quoted(_TAG_END)
        values = each.get("enum") if isinstance(each, Mapping) else None
        if values and all(isinstance(value, str) for value in values):
            value = f"({' | '.join(map(_quoted, values))}) {end}"
        elif kinds(each) - {"string"}:
            value = f"{_held({**each, **_definitions(schema)})} {end}"
        else:
            value = "tagged_text"
        yield f"({opening} {value}){'' if name in required else '?'}"


def _definitions(schema: Mapping[str, Any]) -> dict[str, Any]:
    """What references of a part of the schema point to."""
    return {name: schema[name] for name in ("$defs", "definitions") if name in schema}


def _held(schema: Mapping[str, Any]) -> str:
    return f"%json {json.dumps({**schema, 'x-guidance': {'whitespace_flexible': False}}, allow_nan=False)}"


def _quoted(text: str | None) -> str:
    return json.dumps(text) if text else ""
