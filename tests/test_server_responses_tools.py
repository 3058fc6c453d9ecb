"""Tools in the Responses API: calls as items, whole and streamed, and what a client may require."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from edgespec.server.fields import Fields
from edgespec.server.responses_request import responses_request
from edgespec.server.settings import Settings

from .served import Served, refused, serving
from .test_server_tools import CLOCK, SAID, TEMPLATE, WEATHER, saying, with_template

STREAMED: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
TOOLS = [{"type": "function", "strict": True, **tool["function"]} for tool in (WEATHER, CLOCK)]
CALLS = [("weather", {"city": "Rome"}), ("weather", {"city": "Oslo"})]


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
    return {
        "model": "toy",
        "input": "Hello",
        "max_output_tokens": 300,
        "temperature": 0,
        "tools": TOOLS,
        **fields,
    }


def called(found: Any) -> list[tuple[str, Any]]:
    return [(item.name, json.loads(item.arguments)) for item in found.output if item.type == "function_call"]


def streamed(server: Served, **fields: Any) -> list[dict[str, Any]]:
    text = server.post("/v1/responses", asked(stream=True, **fields)).text
    return [json.loads(block.split("data: ", 1)[1]) for block in text.strip().split("\n\n")]


def test_calls_are_items(server: Served) -> None:
    found = Response.model_validate(server.post("/v1/responses", asked()).json())
    assert [item.type for item in found.output] == ["message", "function_call", "function_call"]
    assert found.output_text.strip() == "Let me look."
    assert called(found) == CALLS
    assert found.status == "completed"
    assert {item.status for item in found.output if item.type == "function_call"} == {"completed"}
    assert len({item.call_id for item in found.output if item.type == "function_call"}) == 2
    assert [tool.name for tool in found.tools if tool.type == "function"] == ["weather", "clock"]
    assert (found.tool_choice, found.parallel_tool_calls) == ("auto", True)


def test_a_stream_has_the_parts_of_calls(server: Served) -> None:
    events = streamed(server)
    for event in events:
        STREAMED.validate_python(event)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    *_, last = events
    added = [event for event in events if event["type"] == "response.output_item.added"]
    assert [event["item"].get("arguments") for event in added] == [None, "", ""]
    for index in (1, 2):
        of_item = [event for event in events if event.get("output_index") == index]
        deltas = [event["delta"] for event in of_item if event["type"].endswith("arguments.delta")]
        *_, done, ended = of_item
        assert done["type"] == "response.function_call_arguments.done"
        assert done["name"] == "weather"
        assert ended["type"] == "response.output_item.done"
        assert "".join(deltas) == done["arguments"] == ended["item"]["arguments"]
        assert len(deltas) > 1, "as they grow"
        assert ended["item"] == last["response"]["output"][index]
        assert {event["item_id"] for event in of_item if "item_id" in event} == {ended["item"]["id"]}


def test_the_client_collects_a_stream(server: Served) -> None:
    with server.openai.responses.stream(**asked()) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_response()
    assert called(final) == CALLS
    assert kinds.count("response.function_call_arguments.done") == 2


def test_spans_beside_calls(server: Served) -> None:
    events = streamed(server, edgespec={"spans": True})
    for event in events:
        STREAMED.validate_python(event)
    assert called(Response.model_validate(events[-1]["response"])) == CALLS
    told = "".join(
        text for event in events if "spans" in event.get("edgespec", {}) for text, _ in event["edgespec"]["spans"]
    )
    assert told == SAID


def test_a_call_that_is_cut_off_is_incomplete(server: Served) -> None:
    found = server.openai.responses.create(**asked(max_output_tokens=SAID.index("Rome")))
    assert [(item.type, item.status) for item in found.output] == [
        ("message", "completed"),
        ("function_call", "incomplete"),
    ]
    assert found.status == "incomplete"


def test_the_beginning_of_a_call_is_text_at_the_end(server: Served) -> None:
    cut = SAID.index("weather")
    found = server.openai.responses.create(**asked(max_output_tokens=cut))
    assert found.output_text == SAID[:cut]
    ends = [event["text"] for event in streamed(server, max_output_tokens=cut) if "output_text.done" in event["type"]]
    assert ends == [SAID[:cut]]


@pytest.mark.parametrize("choice", ["required", {"type": "function", "name": "clock"}])
def test_a_call_can_be_required(babbler: Served, choice: Any) -> None:
    fields = asked(temperature=0.7, tool_choice=choice, parallel_tool_calls=False)
    found = babbler.openai.responses.create(**fields)
    assert [item.type for item in found.output] == ["function_call"]
    if choice != "required":
        assert called(found) == [("clock", {})]
    assert not found.parallel_tool_calls


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("any", "required"),
        ({"type": "function", "function": {"name": "clock"}}, {"type": "function", "name": "clock"}),
        ({"type": "function", "name": "clock"}, {"type": "function", "name": "clock"}),
    ],
)
def test_the_choice_of_a_client_of_chat_completions_is_shown_as_this_api_has_it(
    babbler: Served, given: Any, shown: Any
) -> None:
    answer = babbler.post("/v1/responses", asked(tool_choice=given)).json()
    assert answer["tool_choice"] == shown
    Response.model_validate(answer)


def test_without_tools_it_is_text(server: Served) -> None:
    found = server.openai.responses.create(**asked(tool_choice="none"))
    assert found.output_text == SAID
    assert [item.type for item in found.output] == ["message"]


def test_results_go_back(server: Served) -> None:
    first = server.openai.responses.create(**asked())
    calls = [item for item in first.output if item.type == "function_call"]
    results = [{"type": "function_call_output", "call_id": call.call_id, "output": "sunny"} for call in calls]
    talk = [{"role": "user", "content": "Hello"}, *(item.model_dump() for item in first.output), *results]
    assert called(server.openai.responses.create(**asked(input=talk))) == CALLS


def test_the_calls_of_a_turn_are_one_message() -> None:
    calls = [
        {"type": "function_call", "call_id": f"c{n}", "name": "weather", "arguments": '{"city":"Rome"}'}
        for n in range(2)
    ]
    results = [{"type": "function_call_output", "call_id": f"c{n}", "output": "sunny"} for n in range(2)]
    talk = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hm"}, *calls, *results, *calls]
    request = responses_request(Fields(asked(input=talk)), Settings(), TEMPLATE)
    (prompt,) = request.wanted.prompts
    messages = prompt.messages  # type: ignore[union-attr]
    assert [message["role"] for message in messages] == ["user", "assistant", "tool", "tool", "assistant"]
    assert [[call["id"] for call in message.get("tool_calls", ())] for message in messages] == [
        [],
        ["c0", "c1"],
        [],
        [],
        ["c0", "c1"],
    ]
    assert messages[1]["content"] == "Hm"


def test_what_is_wrong_is_named(server: Served) -> None:
    schema = {"format": {"type": "json_schema", "name": "x", "schema": {"enum": ["yes"]}}}
    wrong: list[dict[str, Any]] = [
        {"tools": [{"type": "web_search"}]},
        {"tools": [{"type": "function"}]},
        {"tools": ["x"]},
        {"tools": 3},
        {"tool_choice": {"type": "function", "name": "other"}},
        {"tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": []}},
        {"tool_choice": "perhaps"},
        {"tools": [], "tool_choice": "required"},
        {"text": schema},
    ]
    for fields in wrong:
        assert refused(server.post("/v1/responses", asked(**fields)), 400)["param"]
