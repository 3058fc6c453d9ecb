"""Calls of tools under a grammar: text is free up to a call, a call is held to its schema."""

from __future__ import annotations

from typing import Any

import pytest

from edgespec import Grammar, GrammarError
from edgespec.backends.toy import Bytes
from edgespec.grammar import FORMATS, GrammarTokens, ToolFormat

from .vocabularies import Toy

TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "parameters": {
                "type": "object",
                "properties": {"city": {"enum": ["Rome", "Oslo"]}},
                "required": ["city"],
                "additionalProperties": False,
            },
        },
    },
    {"name": "now"},
]
TOKENS = GrammarTokens(Bytes())
ROME = '{"name": "weather", "arguments": {"city":"Rome"}}'
CALLS = {
    "hermes": f"<tool_call>\n{ROME}\n</tool_call>",
    "llama3": ROME.replace("arguments", "parameters"),
    "mistral": f"[TOOL_CALLS] [{ROME}]",
    "qwen3-coder": ("<tool_call>\n<function=weather>\n<parameter=city>\nRome\n</parameter>\n</function>\n</tool_call>"),
}


def reads(grammar: Grammar, text: str) -> tuple[int, bool]:
    """How much of a text is admitted, and whether it may end there."""
    constraint = TOKENS.bind(grammar).begin()
    tokens = list(text.encode())
    n = constraint.admits(tokens)
    ends = constraint.admits([*tokens, 258]) == n + 1 or constraint.ended(tokens)
    return n, n == len(tokens) and ends


@pytest.mark.parametrize("style", FORMATS)
def test_a_required_call_is_written_from_the_first_token(style: str) -> None:
    grammar, call = Grammar.tools(TOOLS, required=True, style=style), CALLS[style]
    assert reads(grammar, call) == (len(call), True)
    assert reads(grammar, "Sure") == (0, False)
    assert reads(grammar, "")[1] is False
    at = call.index("weather")
    assert reads(grammar, call.replace("weather", "whether"))[0] == at + 1
    assert reads(grammar, call.replace("Rome", "Roma"))[0] == call.index("Rome") + 3


@pytest.mark.parametrize("style", FORMATS)
def test_text_is_free_and_calls_in_it_are_not(style: str) -> None:
    grammar, call = Grammar.tools(TOOLS, style=style), CALLS[style]
    assert reads(grammar, "Hello, <b>you</b> {}!") == (21, True)
    text = call if style == "llama3" else f"I will look.\n{call}"
    assert reads(grammar, text) == (len(text), True)
    wrong = text.replace("weather", "whether")
    assert reads(grammar, wrong)[0] == text.index("weather") + 1
    assert reads(grammar, text[: text.index("weather")])[1] is False


@pytest.mark.parametrize("required", [False, True])
def test_several_calls(required: bool) -> None:
    one = CALLS["hermes"]
    twice = f"{one}\n{one}"
    assert reads(Grammar.tools(TOOLS, required=required), twice) == (len(twice), True)
    alone = Grammar.tools(TOOLS, required=True, parallel=False)
    assert reads(alone, twice)[0] == len(one)
    listed = f"[TOOL_CALLS] [{ROME}, {ROME}]"
    assert reads(Grammar.tools(TOOLS, required=required, style="mistral"), listed) == (len(listed), True)


def test_a_trigger_may_be_a_special_token() -> None:
    """Then its characters are text."""
    vocabulary = Toy(specials=("</s>", "[TOOL_CALLS]"))
    tokens, special = GrammarTokens(Ending(vocabulary)), vocabulary.size - 1
    constraint = tokens.bind(Grammar.tools(TOOLS, style="mistral")).begin()
    assert constraint.admits([*b"ok", special, *b' [{"name": "n']) == 16
    assert constraint.admits([*b"ok", special, *b"no"]) == 3
    assert constraint.admits([*b"ok [TOOL_CALLS]no"]) == 17


class Ending(Toy):
    """A vocabulary whose `</s>` ends a text."""

    def __init__(self, other: Toy) -> None:
        super().__init__(specials=("</s>", "[TOOL_CALLS]"))
        self.size = other.size

    def is_eog(self, token: int) -> bool:
        return token == 256


@pytest.mark.parametrize(
    ("tools", "style", "message"),
    [
        ([], "hermes", "at least one tool"),
        ("weather", "hermes", "at least one tool"),
        ([{"function": {}}], "hermes", "expected"),
        ([{"name": "x", "parameters": 3}], "hermes", "must be a JSON Schema"),
        ([{"name": "x", "parameters": {"type": "nope"}}], "hermes", "nope"),
        ([{"name": "x", "parameters": {"a": object()}}], "hermes", "JSON"),
        (TOOLS, "harmony", "one of hermes, llama3, mistral"),
    ],
)
def test_what_is_no_tool(tools: object, style: str, message: str) -> None:
    with pytest.raises(GrammarError, match=message):
        Grammar.tools(tools, style=style)  # type: ignore[arg-type]


def test_another_format() -> None:
    form = ToolFormat("<call>", "", "{", ":", "}", None, "</call>")
    text = '<call>{"now":{"a":1}}</call>'
    assert reads(Grammar.tools(TOOLS, required=True, style=form), text) == (len(text), True)


@pytest.mark.parametrize("parallel", [False, True])
def test_a_list_has_several_calls_if_there_may_be_several(parallel: bool) -> None:
    grammar = Grammar.tools(TOOLS, required=True, parallel=parallel, style="mistral")
    two = f"[TOOL_CALLS] [{ROME}, {ROME}]"
    assert reads(grammar, two) == ((len(two), True) if parallel else (two.index("}, {") + 1, False))


@pytest.mark.parametrize("required", [False, True])
def test_arguments_between_tags_are_held_to_the_schema(required: bool) -> None:
    properties = {
        "text": {"type": "string"},
        "days": {"type": "integer", "maximum": 9},
        "unit": {"enum": ["C", "F"]},
        "place": {"$ref": "#/$defs/place"},
    }
    place = {"type": "object", "properties": {"x": {"type": "null"}}, "required": ["x"], "additionalProperties": False}
    parameters = {"properties": properties, "required": ["text", "place"], "$defs": {"place": place}}
    grammar = Grammar.tools([{"name": "f", "parameters": parameters}], required=required, style="qwen3-coder")

    def call(**values: str) -> str:
        written = "".join(f"<parameter={name}>\n{value}\n</parameter>\n" for name, value in values.items())
        return f"<tool_call>\n<function=f>\n{written}</function>\n</tool_call>"

    free = "</function>\n</param\n<tool_call>"
    for values in (
        {"text": free, "days": "9", "unit": "F", "place": '{"x":null}'},
        {"text": "", "place": '{"x":null}'},
    ):
        assert reads(grammar, call(**values)) == (len(call(**values)), True)
    for wrong, at in (({"days": "9"}, "days"), ({"text": "a", "days": "10"}, "0\n"), ({"text": "a", "unit": "K"}, "K")):
        text = call(**wrong)
        assert reads(grammar, text)[0] == text.index(at), text


def test_tags_need_a_schema_with_properties() -> None:
    with pytest.raises(GrammarError, match="with properties"):
        Grammar.tools([{"name": "x", "parameters": {"properties": 3}}], style="qwen3-coder")
