"""Calls with an argument between tags each, as Qwen3-Coder writes them, however the text is cut into parts."""

from __future__ import annotations

import json
from typing import Any

import pytest

from edgespec.text.call_parser import CallDelta
from edgespec.text.tool_calls import parser_of
from edgespec.text.xml_calls import XmlCallParser, kinds

from .test_tool_calls import deltas, told

TEMPLATE = "{{ tools }}<tool_call>\n<function=example_function_name>\n<parameter=x>\n</parameter>"
SCHEMA: dict[str, Any] = {
    "properties": {
        "city": {"type": "string"},
        "days": {"type": "integer"},
        "flags": {"type": "array"},
        "exact": {"type": "boolean"},
        "unit": {"anyOf": [{"type": "string"}, {"type": "null"}]},
    }
}


def parser() -> XmlCallParser:
    found = parser_of(TEMPLATE, {"weather": SCHEMA, "now": None})
    assert isinstance(found, XmlCallParser)
    return found


def call(name: str = "weather", **values: str) -> str:
    parameters = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in values.items())
    return f"<tool_call>\n<function={name}>\n{parameters}</function>\n</tool_call>"


@pytest.mark.parametrize("step", [1, 2, 3, 7, 1000])
@pytest.mark.parametrize(
    ("values", "arguments"),
    [
        ({}, {}),
        ({"city": "Rome"}, {"city": "Rome"}),
        ({"city": ' "a"\\n\n<b>\n\n', "days": "3"}, {"city": ' "a"\\n\n<b>\n\n', "days": 3}),
        ({"city": "5", "other": "5"}, {"city": "5", "other": "5"}),
        ({"days": "three"}, {"days": "three"}),
        ({"days": "None", "exact": "True"}, {"days": None, "exact": True}),
        ({"flags": '["</function>", {"a": 1}]'}, {"flags": ["</function>", {"a": 1}]}),
        ({"unit": "null", "city": "null"}, {"unit": None, "city": "null"}),
        ({"unit": "1"}, {"unit": "1"}),
        ({"city": "x</param\n</parameters"}, {"city": "x</param\n</parameters"}),
    ],
)
def test_arguments_become_json_by_their_schema(values: dict[str, str], arguments: dict[str, Any], step: int) -> None:
    found = parser()
    content, calls = told(deltas(found, f"Look: {call(**values)}\n{call('now')} done", step))
    assert content == "Look: done"
    assert [(name, json.loads(text)) for name, text in calls] == [("weather", arguments), ("now", {})]
    assert found.calls == 2


@pytest.mark.parametrize("step", [1, 4, 1000])
def test_without_line_breaks_and_the_outer_tag(step: int) -> None:
    text = "<function=weather><parameter=city>Rome</parameter><parameter=days>2</parameter></function>"
    assert told(deltas(parser(), text, step)) == ("", [("weather", '{"city": "Rome", "days": 2}')])


@pytest.mark.parametrize("step", [1, 5, 1000])
@pytest.mark.parametrize(
    "text",
    ["a <tool and <tool_call", "<tool_call>\nnothing", call("unknown", city="Rome"), "<function=wea", "<function=>"],
)
def test_what_is_no_call_is_text(text: str, step: int) -> None:
    assert told(deltas(parser(), text, step)) == (text, [])


def test_a_text_arrives_in_parts() -> None:
    found = parser()
    found.push("<tool_call>\n<function=weather>\n<parameter=city>\n")
    assert found.push("Ro\n") == [CallDelta(0, "", "Ro")], "a line break may be the last one"
    assert found.push("me\n</par") == [CallDelta(0, "", "\\nme")]
    assert found.push("ameter>\n<parameter=days>\n1") == [CallDelta(0, "", '"')]
    assert found.push("2\n</parameter>") == [CallDelta(0, "", ', "days": 12')]
    assert found.push("\n</function>") == [CallDelta(0, "", "}")]
    assert found.calls == 1


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        ("<parameter=city>\nRo", '{"city": "Ro'),
        ("<parameter=days>\n1", "{"),
        ("<parameter=ci", "{"),
        ("", "{"),
    ],
)
def test_an_answer_that_ends_early_has_incomplete_arguments(text: str, arguments: str) -> None:
    found = parser()
    content, calls = told(deltas(found, f"<tool_call>\n<function=weather>\n{text}", 3))
    assert calls == [("weather", arguments)]
    assert content == ""
    assert found.calls == 0


def test_what_follows_a_parameter_that_is_none_ends_the_call() -> None:
    content, calls = told(deltas(parser(), "<function=weather>\n<parameter=city>\nRome\n</parameter>\nHello", 2))
    assert (content, calls) == ("Hello", [("weather", '{"city": "Rome"}')])


def test_kinds_of_schemas() -> None:
    assert kinds({"type": ["string", "null"]}) == kinds({"oneOf": [{"type": "string"}, {"type": "null"}]})
    assert kinds({"type": "number", "anyOf": None}) == {"number"}
    assert kinds({}) == kinds("x") == kinds({"type": 3, "anyOf": 3}) == set()
