"""Calls in messages with headers, as gpt-oss writes them: the function is in the header, its arguments in the text."""

from __future__ import annotations

from typing import Any

import pytest

from edgespec import Finished, Text
from edgespec.text.tool_calls import parser_of

from .test_tool_calls import deltas, told
from .thinkers import HARMONY, Words, thinker
from .toy_runtime import USER

TEMPLATE = (
    "{% for tool in tools or [] %}{{ tool.function.name }}{% endfor %}"
    "{% for m in messages if m.tool_calls %}<|start|>assistant to=functions.{{ m.tool_calls[0].function.name }}"
    "<|channel|>commentary json<|message|>{{ m.tool_calls[0].function.arguments | tojson }}<|call|>{% endfor %}"
) + HARMONY
CONTROL = ("<|start|>", "<|channel|>", "<|message|>", "<|constrain|>", "<|call|>")
THOUGHT = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant"
TOOLS: list[dict[str, Any]] = [{"type": "function", "function": {"name": name}} for name in ("f", "get_it")]


def answered(text: str, *, as_tokens: bool = True, k: int = 3) -> tuple[str, str, list[tuple[str, str]]]:
    """The reasoning, the text and the calls of an answer."""
    vocabulary = Words(TEMPLATE, control=CONTROL, plain=("<|end|>",)) if as_tokens else Words(TEMPLATE)
    runtime, script = thinker(vocabulary, k=k)
    script.follow(runtime.prompt([USER], tools=TOOLS), vocabulary.tokenize(text, special=True))
    parser = runtime.call_parser(TOOLS)
    assert parser is not None
    events = list(runtime.chat([USER], tools=TOOLS))
    assert isinstance(events[-1], Finished)
    said = [event for event in events if isinstance(event, Text)]
    assert all("".join(span.text for span in each.spans) == each.reasoning + each.text for each in said)
    found = [delta for each in said for delta in parser.push(each.text)] + parser.flush()
    return "".join(each.reasoning for each in said), *told(found)


@pytest.mark.parametrize("as_tokens", [True, False])
@pytest.mark.parametrize(
    "header",
    [
        "<|channel|>commentary to=functions.get_it <|constrain|>json<|message|>",
        "<|channel|>commentary to=functions.get_it<|message|>",
        " to=functions.get_it<|channel|>commentary json<|message|>",
        "<|channel|>analysis to=functions.get_it code<|message|>",
    ],
)
def test_a_call_is_told_from_reasoning(header: str, as_tokens: bool) -> None:
    arguments = '{"a": "<|end", "b": {"c": []}}'
    said = f"{THOUGHT}{header}{arguments}<|call|>" if as_tokens else f"{THOUGHT}{header}{arguments}"
    assert answered(said, as_tokens=as_tokens) == ("Hm.", "", [("get_it", arguments)])


def test_what_is_said_before_a_call_is_text() -> None:
    said = (
        f"{THOUGHT}<|channel|>commentary<|message|>I look.<|end|>"
        "<|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>{}<|call|>"
    )
    assert answered(said) == ("Hm.", "I look.", [("f", "{}")])


def test_several_calls_and_one_that_is_cut_off() -> None:
    one = '<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"n": 1}<|end|><|start|>assistant'
    assert answered(one + one.replace("1}<|end|><|start|>assistant", "2")) == (
        "",
        "",
        [("f", '{"n": 1}'), ("f", '{"n": 2')],
    )


@pytest.mark.parametrize(
    ("name", "text"),
    [("unknown", "{}"), ("f", "no object"), ("f", ""), ("f.g", "{}")],
)
def test_what_is_no_call_is_text(name: str, text: str) -> None:
    said = f"<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>{text}"
    assert answered(said) == ("", f"<|channel|>commentary to=functions.{name}<|message|>{text}", [])


def test_a_final_answer_is_text() -> None:
    assert answered(f"{THOUGHT}<|channel|>final<|message|>to=functions.f {{}}") == ("Hm.", "to=functions.f {}", [])


def test_the_form_is_known_by_the_template() -> None:
    found = parser_of(TEMPLATE, ["f"])
    assert found is not None
    assert told(deltas(found, "<|channel|>commentary to=functions.f<|message|>{}", 5)) == ("", [("f", "{}")])
    assert parser_of(HARMONY, ["f"]) is None
