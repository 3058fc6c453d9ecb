"""Tools: calls in answers and streams, and what a client may require."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from edgespec.backends.toy import END, Bytes, scripted

from .served import HELLO, Served, body, refused, serving

TEMPLATE = (
    "{% if tools %}Tools: {% for tool in tools %}{{ tool.function.name }} {% endfor %}"
    "Answer with <tool_call>{...}</tool_call>\n{% endif %}" + str(Bytes.template)
)


def function(name: str, **properties: Any) -> dict[str, Any]:
    schema = {"type": "object", "properties": properties, "required": [*properties], "additionalProperties": False}
    return {"type": "function", "function": {"name": name, "parameters": schema}}


WEATHER = function("weather", city={"type": "string", "enum": ["Rome", "Oslo"]})
CLOCK = function("clock")
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city":"Rome"}}\n</tool_call>'
#: The model begins it wherever its answer begins.
SAID = f"Let me look. {CALL}\n{CALL.replace('Rome', 'Oslo')}"


def with_template(served: Served) -> Served:
    """The server's model with TEMPLATE; set before its first chat."""
    vocabulary: Any = served.runtime.vocabulary
    vocabulary.template = TEMPLATE
    return served


def saying(text: str) -> Any:
    """A rule that says `text` and ends, after the last line that begins an answer."""
    tokens = [*text.encode(), Bytes().tokenize(END, special=True)[0]]
    begin = Bytes().tokenize("<|im_start|>assistant\n", special=True)

    def rule(context: Any) -> Any:
        context = list(context)
        starts = (at for at in range(len(context), -1, -1) if context[at : at + len(begin)] == begin)
        start = next(starts, -len(begin)) + len(begin)
        said = len(context) - start
        return scripted(Bytes.size, [tokens[min(said, len(tokens) - 1)]])(context)

    return rule


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    pytest.importorskip("llguidance")
    with serving(saying(SAID), context=1024) as served:
        yield with_template(served)


@pytest.fixture(scope="module")
def babbler() -> Iterator[Served]:
    """A model that writes noise, unless it is held to a grammar."""
    pytest.importorskip("llguidance")
    with serving(context=1024) as served:
        yield with_template(served)


def asked(**fields: Any) -> dict[str, Any]:
    return body(**{"max_tokens": 300, "temperature": 0, "tools": [WEATHER, CLOCK], **fields})


def called(choice: Any) -> list[tuple[str, Any]]:
    return [(call.function.name, json.loads(call.function.arguments)) for call in choice.message.tool_calls]


def test_calls_are_told_from_text(server: Served) -> None:
    found = ChatCompletion.model_validate(server.post("/v1/chat/completions", asked()).json(), strict=True)
    (choice,) = found.choices
    assert str(choice.message.content).strip() == "Let me look."
    assert called(choice) == [("weather", {"city": "Rome"}), ("weather", {"city": "Oslo"})]
    assert choice.finish_reason == "tool_calls"
    ids = [call.id for call in choice.message.tool_calls or ()]
    assert len({*ids}) == 2
    assert all(each.startswith("call_") and len(each) == 29 for each in ids)


def test_calls_arrive_in_a_stream(server: Served) -> None:
    chunks = list(server.openai.chat.completions.create(**asked(), stream=True))
    for chunk in chunks:
        ChatCompletionChunk.model_validate(chunk.model_dump(), strict=True)
    calls: dict[int, dict[str, str]] = {}
    arguments = 0
    for chunk in chunks:
        for call in chunk.choices[0].delta.tool_calls or ():
            found = calls.setdefault(call.index, {"id": call.id or "", "name": "", "arguments": ""})
            found["name"] += (call.function.name if call.function else None) or ""
            found["arguments"] += (call.function.arguments if call.function else None) or ""
            arguments += 1
    assert [(call["name"], call["arguments"]) for call in calls.values()] == [
        ("weather", '{"city":"Rome"}'),
        ("weather", '{"city":"Oslo"}'),
    ]
    assert arguments > 4, "as they grow"
    assert chunks[-1].choices[0].finish_reason == "tool_calls"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks).strip() == "Let me look."


def test_without_tools_it_is_text(server: Served) -> None:
    without: list[dict[str, Any]] = [{"tools": None}, {"tools": []}, {"tool_choice": "none"}]
    for fields in without:
        found = server.post("/v1/chat/completions", asked(**fields)).json()["choices"][0]
        assert found["message"]["content"] == SAID
        assert "tool_calls" not in found["message"]
        assert found["finish_reason"] == "stop"


def test_a_call_can_be_required(babbler: Served) -> None:
    for seed in range(3):
        fields = asked(temperature=0.7, seed=seed, tool_choice="required", parallel_tool_calls=False)
        found = babbler.openai.chat.completions.create(**fields)
        assert len(found.choices[0].message.tool_calls or ()) == 1
        assert found.choices[0].finish_reason == "tool_calls"
        assert found.choices[0].message.content is None
        for name, arguments in called(found.choices[0]):
            assert (name, arguments) in [("clock", {}), ("weather", {"city": "Rome"}), ("weather", {"city": "Oslo"})]


@pytest.mark.parametrize("name", ["weather", "clock"])
def test_one_function_can_be_required(babbler: Served, name: str) -> None:
    choice = {"type": "function", "function": {"name": name}}
    found = babbler.openai.chat.completions.create(**asked(temperature=0.7, seed=1, tool_choice=choice))
    assert [name for name, _ in called(found.choices[0])] == [name]


def test_a_call_with_tags_can_be_required() -> None:
    """As Qwen3-Coder writes it; arguments are JSON for the client."""
    pytest.importorskip("llguidance")
    days = {"type": "integer", "minimum": 1, "maximum": 9}
    tool = function("weather", city={"type": "string", "enum": ["Rome", "Oslo"]}, days=days)
    with serving(context=1024) as served:
        vocabulary: Any = served.runtime.vocabulary
        vocabulary.template = TEMPLATE.replace("{...}", "<function=x>")
        for seed in range(3):
            fields = asked(tools=[tool], temperature=0.7, seed=seed, tool_choice="required", parallel_tool_calls=False)
            ((name, arguments),) = called(served.openai.chat.completions.create(**fields).choices[0])
            assert (name, arguments["city"] in ("Rome", "Oslo"), type(arguments["days"])) == ("weather", True, int)


def test_a_conversation_with_calls_is_a_prompt(server: Served) -> None:
    message = server.post("/v1/chat/completions", asked()).json()["choices"][0]["message"]
    results = [
        {"role": "tool", "tool_call_id": call["id"], "content": [{"type": "text", "text": "sunny"}]}
        for call in message["tool_calls"]
    ]
    found = server.post("/v1/chat/completions", asked(messages=[*HELLO, message, *results]))
    assert found.status_code == 200, found.text


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [{"type": "retrieval"}]}, "tools"),
        ({"tools": [{"type": "function"}]}, "tools"),
        ({"tools": [{"type": "function", "function": {"name": "x", "parameters": {"type": "nope"}}}]}, "tools"),
        ({"tools": "weather"}, "tools"),
        ({"tools": None, "tool_choice": "required"}, "tools"),
        ({"tool_choice": "maybe"}, "tool_choice"),
        ({"tool_choice": {"type": "function", "function": {"name": "other"}}}, "tool_choice"),
        ({"tool_choice": {"type": "allowed_tools"}}, "tool_choice"),
        ({"functions": [{}]}, "functions"),
        ({"response_format": {"type": "json_object"}}, "tools"),
    ],
)
def test_wrong_tools_are_named(server: Served, fields: dict[str, object], param: str) -> None:
    assert refused(server.post("/v1/chat/completions", asked(**fields)), 400)["param"] == param


def test_a_call_cannot_be_required_of_a_model_without_a_known_form() -> None:
    with serving() as served:
        assert (
            refused(served.post("/v1/chat/completions", asked(tool_choice="required")), 400)["param"] == "tool_choice"
        )
        assert served.post("/v1/chat/completions", asked(max_tokens=3)).status_code == 200
