"""Tool calls in the text of an answer, however it is cut into parts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from edgespec import Text
from edgespec.backends.toy import Bytes, scripted
from edgespec.text.call_parser import CallDelta, ContentDelta, Delta, ToolCallParser
from edgespec.text.tool_calls import format_of, parser_of

from .toy_runtime import USER, opened

#: What templates have of each family.
TEMPLATES = {
    "hermes": "<tool_call>\n{{ tool_call.name }}</tool_call>",
    "llama": "<|start_header_id|>{{ tools }}<|python_tag|>",
    "mistral": "[TOOL_CALLS]{{ tools }}",
    "deepseek": "<｜tool▁calls▁begin｜>",
}
BEGIN, CALL, SEP = "<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>"
END, ENDS = "<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>"
F = ("f", '{"a": 1}')
G = ("g", '{"b": "}\\"]"}')


def deltas(parser: ToolCallParser, text: str, step: int) -> list[Delta]:
    parts = [text[at : at + step] for at in range(0, len(text), step)]
    return [delta for part in parts for delta in parser.push(part)] + parser.flush()


def told(found: Sequence[Delta]) -> tuple[str, list[tuple[str, str]]]:
    """The text, and the calls: name and arguments."""
    calls: list[tuple[str, str]] = []
    for delta in found:
        if isinstance(delta, CallDelta):
            assert delta.call in (len(calls), len(calls) - 1)
            assert bool(delta.name) == (delta.call == len(calls)), "the name comes first, and once"
            calls[delta.call :] = [
                (delta.name, delta.arguments) if delta.name else (calls[-1][0], calls[-1][1] + delta.arguments)
            ]
    return "".join(delta.text for delta in found if isinstance(delta, ContentDelta)), calls


@pytest.mark.parametrize("step", [1, 2, 5, 1000])
@pytest.mark.parametrize(
    ("family", "text", "content", "calls"),
    [
        (
            "hermes",
            (
                'Hi <tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>\n'
                '<tool_call>\n{"name": "g", "arguments": {"b": "}\\"]"}}\n</tool_call> bye'
            ),
            "Hi bye",
            [F, G],
        ),
        ("hermes", '<tool_call>{"arguments": {"a": 1}, "name": "f"}</tool_call>', "", [F]),
        ("hermes", '<tool_call>{"name": "f", "arguments": "{\\"a\\": 1}"}</tool_call>', "", [F]),
        ("hermes", '<tool_call>{"name": "f"}</tool_call>', "", [("f", "{}")]),
        ("hermes", '<tool_call>{"name": "f", "arguments": {"a": [1, ', "", [("f", '{"a": [1, ')]),
        ("llama", '{"name": "f", "parameters": {"a": 1}}', "", [F]),
        (
            "llama",
            (
                '<|python_tag|>{"type": "function", "name": "f", "parameters": {"a": 1}}; '
                '{"name": "g", "parameters": {"b": "}\\"]"}}'
            ),
            "",
            [F, G],
        ),
        (
            "mistral",
            (
                '[TOOL_CALLS][{"name": "f", "arguments": {"a": 1}, "id": "abc123def"}, '
                '{"name": "g", "arguments": {"b": "}\\"]"}}]'
            ),
            "",
            [F, G],
        ),
        ("mistral", 'x[TOOL_CALLS]f[ARGS]{"a": 1}[TOOL_CALLS]g[CALL_ID]c1[ARGS]{"b": "}\\"]"}', "x", [F, G]),
        ("mistral", '[TOOL_CALLS] f{"a": 1}', "", [F]),
        (
            "deepseek",
            (
                f'{BEGIN}{CALL}function{SEP}f\n```json\n{{"a": 1}}\n```{END}\n'
                f'{CALL}function{SEP}g\n```json\n{{"b": "}}\\"]"}}\n```{END}{ENDS}'
            ),
            "",
            [F, G],
        ),
        ("deepseek", f'Ok{BEGIN}{CALL}f{SEP}{{"a": 1}}{END}{CALL}g{SEP}{{"b": "}}\\"]"}}{END}{ENDS}', "Ok", [F, G]),
    ],
)
def test_calls_are_told_from_text(
    family: str, text: str, content: str, calls: list[tuple[str, str]], step: int
) -> None:
    parser = parser_of(TEMPLATES[family], ["f", "g"])
    assert parser is not None
    assert told(deltas(parser, text, step)) == (content, calls)
    assert parser.calls == len(calls) - (not text.rstrip("]").endswith(("}", ">", "bye")))


@pytest.mark.parametrize("step", [1, 4, 1000])
@pytest.mark.parametrize(
    ("family", "text"),
    [
        ("hermes", "a <tool and <tool_call"),
        ("hermes", "<tool_call>\n{broken</tool_call> x"),
        ("hermes", '<tool_call>{"name": "unknown", "arguments": {"a": 1}}</tool_call>'),
        ("hermes", '<tool_call>{"arguments": {}, "name": "unknown"}</tool_call>'),
        ("hermes", '<tool_call>{"name": 3, "arguments": {}}</tool_call>'),
        ("hermes", '<tool_call>{"name": "f", "argum'),
        ("hermes", "<tool_call>" + "x" * 3000),
        ("llama", '{"x": 1} is JSON'),
        ("llama", ' {"name": "f", "par'),
        ("llama", 'Hello {"name": "f", "parameters": {}}'),
        ("llama", "{"),
        ("mistral", "[TOOL_CALLS] is a marker"),
        ("mistral", '[TOOL_CALLS]unknown[ARGS]{"a": 1}'),
        ("deepseek", f"{BEGIN}{CALL}function{SEP}f\n{ENDS}"),
    ],
)
def test_what_is_no_call_is_text(family: str, text: str, step: int) -> None:
    parser = parser_of(TEMPLATES[family], ["f", "g"])
    assert parser is not None
    assert told(deltas(parser, text, step)) == (text, [])


def test_a_call_after_one_that_is_none() -> None:
    parser = parser_of(TEMPLATES["hermes"], ["f"])
    assert parser is not None
    wrong = '<tool_call>{"name": "q", "arguments": {}}</tool_call>'
    assert told(deltas(parser, f'{wrong}<tool_call>{{"name": "f", "arguments": {F[1]}}}</tool_call>', 3)) == (
        wrong,
        [F],
    )


def test_arguments_arrive_in_parts() -> None:
    parser = parser_of(TEMPLATES["hermes"], ["f"])
    assert parser is not None
    assert parser.push('<tool_call>{"name": "f", "arg') == []
    assert parser.push('uments": {"a"') == [CallDelta(0, "f", ""), CallDelta(0, "", '{"a"')]
    assert parser.push(": 1}") == [CallDelta(0, "", ": 1}")]
    assert parser.push("}") == []


@pytest.mark.parametrize("template", ["{{ messages }}", "tools", "<|start_header_id|>"])
def test_other_templates_have_no_parser(template: str) -> None:
    assert format_of(template) is None
    assert parser_of(template, ["f"]) is None


class Marked(Bytes):
    """The last special token is the marker of calls."""

    template = "[TOOL_CALLS]{% for t in tools or [] %}{{ t | tojson }}{% endfor %}{{ messages[0].content }}"

    def label(self, token: int) -> str:
        return "[TOOL_CALLS]" if token == 257 else super().label(token)

    def tokenize(self, text: str, *, special: bool = False, start: bool = False) -> list[int]:
        return [257] if special and text == "[TOOL_CALLS]" else super().tokenize(text, special=special, start=start)


TOOL: dict[str, Any] = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}


@pytest.mark.parametrize("tools", [[TOOL], None])
def test_a_marker_that_is_a_special_token_is_in_the_text_of_answers_with_tools(tools: list[Any] | None) -> None:
    said = [ord("x"), 257, *b'f{"a": 1}', 258]
    runtime, target = opened(None, context=1024, k=2)
    target.vocabulary = Marked()
    prompt = runtime.prompt([USER], tools=tools)
    script = [*prompt, *said]
    target.sessions[0]._rule = scripted(Bytes.size, script)
    text = "".join(e.text for e in runtime.chat([USER], tools=tools) if isinstance(e, Text))
    assert text == ("x[TOOL_CALLS]" if tools else "x") + 'f{"a": 1}'
    if tools:
        parser = runtime.call_parser(tools)
        assert parser is not None
        assert told(deltas(parser, text, 4)) == ("x", [F])
