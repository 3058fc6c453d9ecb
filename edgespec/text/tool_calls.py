"""Tool calls in the text of an answer, as families of models write them, parsed while the text arrives.

    parser = parser_of(template, ["weather"])
    for event in answer:
        if isinstance(event, Text):
            for part in parser.push(event.text):
                ...  # ContentDelta or CallDelta
    parser.flush()

Formats, by what the chat template has:

    Hermes, Qwen       <tool_call>{"name": "f", "arguments": {...}}</tool_call>
    Llama 3            {"name": "f", "parameters": {...}} as the whole answer, or after <|python_tag|>
    Mistral to v7      [TOOL_CALLS][{"name": "f", "arguments": {...}}, ...]
    Mistral from v11   [TOOL_CALLS]f[ARGS]{...}, v13 with [CALL_ID]... before [ARGS]
    DeepSeek V3, R1    <｜tool▁call▁begin｜>function<｜tool▁sep｜>f, then {...} in a fenced block of JSON
    DeepSeek V3.1      <｜tool▁call▁begin｜>f<｜tool▁sep｜>{...}
    Qwen3-Coder        <tool_call><function=f><parameter=x>...</parameter></function></tool_call>
    gpt-oss            <|channel|>commentary to=functions.f <|constrain|>json<|message|>{...}

A call is recognised by its marker, the name of a known function and the beginning of its arguments; up to there it is
held back, and what turns out to be no call is text. The arguments are the model's own text, passed on as they arrive:
an answer that ends early has incomplete ones.
"""

from __future__ import annotations

import re
from collections.abc import Collection

from .call_parser import Format, ToolCallParser
from .reasoning import call_header
from .xml_calls import XML, XmlCallParser

_OBJECT = (
    r'\{\s*(?:"(?:id|type)"\s*:\s*"[^"\\]*"\s*,\s*)*'
    r'"name"\s*:\s*"(?P<name>[^"\\]+)"\s*,\s*"(?:arguments|parameters)"\s*:\s*(?=\{)'
)

_HERMES = Format(
    ("<tool_call>",),
    re.compile(rf"<tool_call>\s*{_OBJECT}"),
    ("</tool_call>",),
    whole=re.compile(r"<tool_call>\s*(?=\{)"),
)
_LLAMA = Format(
    ("<|python_tag|>",),
    re.compile(rf"\s*(?:<\|python_tag\|>)?\s*{_OBJECT}"),
    (";",),
    again=re.compile(_OBJECT),
    whole=re.compile(r"\s*(?:<\|python_tag\|>)?\s*(?=\{)"),
    bare=True,
)
_MISTRAL = Format(
    ("[TOOL_CALLS]",),
    re.compile(
        rf"\[TOOL_CALLS\]\s*(?:\[?\s*{_OBJECT}"
        r"|(?P<plain>[\w.:/-]+)\s*(?:\[CALL_ID\]\s*[\w-]*\s*)?(?:\[ARGS\])?\s*(?=\{))"
    ),
    (",", "]"),
    again=re.compile(_OBJECT),
    whole=re.compile(r"\[TOOL_CALLS\]\s*\[?\s*(?=\{)"),
    inside=("[ARGS]", "[CALL_ID]"),
)
_DEEPSEEK = Format(
    ("<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>"),
    re.compile(
        r"(?:<｜tool▁calls▁begin｜>\s*)?<｜tool▁call▁begin｜>"
        r"(?:function<｜tool▁sep｜>(?P<fenced>[^\s<]+)\s*```(?:json)?|(?P<plain>[^\s<]+)<｜tool▁sep｜>)\s*(?=\{)"
    ),
    ("```", "<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>"),
    inside=("<｜tool▁sep｜>",),
)
_HEADER, _, _REST = call_header("\n").partition("\n")
_HARMONY = Format(
    (_HEADER,),
    re.compile(rf"{re.escape(_HEADER)}(?P<plain>[\w.-]+){re.escape(_REST)}\s*(?=\{{)"),
    ("<|call|>",),
)


def format_of(template: str) -> Format | None:
    """The format of a chat template; None if it has no calls, or they are of no format known here."""
    if "[TOOL_CALLS]" in template:
        return _MISTRAL
    if "<｜tool▁calls▁begin｜>" in template:
        return _DEEPSEEK
    if "<tool_call>" in template:
        return XML if "<function=" in template else _HERMES
    if "to=functions." in template and "<|channel|>" in template:
        return _HARMONY
    if "<|python_tag|>" in template or ("tools" in template and "<|start_header_id|>" in template):
        return _LLAMA
    return None


def parser_of(template: str, names: Collection[str]) -> ToolCallParser | None:
    """A parser for one answer; None if the format of the template is not known: its calls stay in the text.

    Args:
        names: the functions that may be called, as a mapping with the JSON schemas of their parameters.
    """
    found = format_of(template)
    if found is None:
        return None
    return XmlCallParser(found, names) if found is XML else ToolCallParser(found, names)
