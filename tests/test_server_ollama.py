"""Tools in Ollama's chats, by its own client."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from edgespec.server.fields import Fields
from edgespec.server.ollama_tools import WholeCalls, conversation
from edgespec.text.tool_calls import parser_of

from .served import HELLO, Served, refused, serving
from .test_server_tools import CLOCK, TEMPLATE, WEATHER, saying, with_template

ollama = pytest.importorskip("ollama")

CALL = '<tool_call>\n{"name": "weather", "arguments": {"city":"Rome"}}\n</tool_call>'
SAID = f"Let me look. {CALL}\n{CALL.replace('Rome', 'Oslo')}"
CALLED = [{"function": {"name": "weather", "arguments": {"city": city}}} for city in ("Rome", "Oslo")]


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    pytest.importorskip("llguidance")
    with serving(saying(SAID), context=1024) as served:
        yield with_template(served)


@pytest.fixture
def client(server: Served) -> Iterator[Any]:
    found = ollama.Client(server.url)
    yield found
    found._client.close()


def asked(**fields: Any) -> dict[str, Any]:
    options = {"temperature": 0, "num_predict": 300}
    return {"model": "toy", "messages": HELLO, "tools": [WEATHER, CLOCK], "options": options, **fields}


def dumped(calls: Any) -> list[Any]:
    return [call.model_dump(include={"function"}) for call in calls or ()]


def test_calls_are_objects(server: Served, client: Any) -> None:
    found = client.chat(**asked())
    assert found.message.content.strip() == "Let me look."
    assert dumped(found.message.tool_calls) == CALLED
    assert found.done_reason == "stop"
    raw = server.post("/api/chat", asked(stream=False)).json()
    ollama.ChatResponse.model_validate(raw, strict=True)
    assert raw["message"]["tool_calls"] == CALLED


def test_a_stream_has_whole_calls(client: Any) -> None:
    parts = list(client.chat(**asked(stream=True)))
    assert [dumped(part.message.tool_calls) for part in parts if part.message.tool_calls] == [[each] for each in CALLED]
    assert "".join(part.message.content for part in parts).strip() == "Let me look."
    assert [part.done for part in parts] == [False] * (len(parts) - 1) + [True]
    assert len(parts) > 4, "the text arrives before the calls"


def test_results_go_back_as_the_client_sends_them(server: Served, client: Any) -> None:
    message = client.chat(**asked()).message
    results = [{"role": "tool", "tool_name": "weather", "content": "sunny"} for _ in message.tool_calls]
    found = client.chat(**asked(messages=[*HELLO, message, *results]))
    assert dumped(found.message.tool_calls) == CALLED
    assert server.post("/api/show", {"model": "toy"}).json()["capabilities"] == ["completion", "tools"]


def test_results_belong_to_the_calls_they_name() -> None:
    calls: list[dict[str, Any]] = [
        {"function": {"name": name, "arguments": {}}} for name in ("weather", "clock", "weather")
    ]
    talk = [
        *HELLO,
        {"role": "assistant", "content": "", "thinking": "Hm", "tool_calls": calls},
        {"role": "tool", "tool_name": "clock", "content": "noon"},
        {"role": "tool", "tool_name": "weather", "content": "sun"},
        {"role": "tool", "content": "rain"},
        {"role": "tool", "tool_name": "other", "content": "?"},
    ]
    found = conversation(Fields({"messages": talk}))
    ids = [call["id"] for call in found[1]["tool_calls"]]
    assert len({*ids}) == 3
    assert all(len(each) == 9 and each.isalnum() for each in ids)
    assert [message.get("tool_call_id") for message in found[2:]] == [ids[1], ids[0], ids[2], None]
    assert [message["name"] for message in found[2:]] == ["clock", "weather", "weather", "other"]
    assert found[1]["reasoning_content"] == "Hm"


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_a_call_comes_when_it_has_ended(size: int) -> None:
    text = SAID.replace('{"city":"Rome"}', '{"city": {"name": "a}b"}}')
    found = WholeCalls(parser_of(TEMPLATE, ["weather"]))
    parts = [found.push(text[at : at + size]) for at in range(0, len(text), size)]
    calls = [call for _, several in [*parts, found.flush()] for call in several]
    assert [call["function"]["arguments"] for call in calls] == [{"city": {"name": "a}b"}}, {"city": "Oslo"}]


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_a_call_whose_arguments_are_no_json_is_text(size: int) -> None:
    """It vanished."""
    wrong = '{"city": Rome}'
    text = SAID.replace('{"city":"Rome"}', wrong)
    found = WholeCalls(parser_of(TEMPLATE, ["weather"]))
    parts = [found.push(text[at : at + size]) for at in range(0, len(text), size)]
    parts.append(found.flush())
    assert (
        "".join(said for said, _ in parts).split("\n")[0] == f'Let me look. {{"name": "weather", "arguments": {wrong}}}'
    )
    calls = [call for _, several in parts for call in several]
    assert [call["function"]["arguments"] for call in calls] == [{"city": "Oslo"}]


def test_a_call_that_was_cut_off_is_left_out(client: Any) -> None:
    found = client.chat(**asked(options={"temperature": 0, "num_predict": SAID.index("Rome")}))
    assert (found.message.tool_calls, found.done_reason) == (None, "length")


def test_formats(client: Any) -> None:
    schema = {"enum": ["yes"]}
    for given, expected in ((schema, ["yes"]), ("json", None)):
        found = client.chat(**asked(tools=None, format=given, options={"temperature": 0.7, "num_predict": 200}))
        if expected is not None:
            assert json.loads(found.message.content) in expected
        else:
            assert found.message.content.lstrip().startswith("{")
    with pytest.raises(ollama.ResponseError):
        client.chat(**asked(format=schema))


def test_wrong_tools_are_named(server: Served) -> None:
    wrong: list[dict[str, Any]] = [
        {"tools": [{"type": "function"}]},
        {"tools": "weather"},
        {"messages": [{"role": "assistant", "tool_calls": [{"function": {}}]}]},
        {"messages": [{"role": "assistant", "tool_calls": ["x"]}]},
    ]
    for fields in wrong:
        refused(server.post("/api/chat", asked(**fields)), 400)


def test_pictures_are_refused(server: Served, client: Any) -> None:
    """They were left out in silence, and the model answered as if it had seen them."""
    message = {"role": "user", "content": "What is this?", "images": ["aGVsbG8="]}
    assert "images" in refused(server.post("/api/chat", asked(messages=[message])), 400)["message"]
    refused(server.post("/api/generate", {"model": "toy", "prompt": "What is this?", "images": ["aGVsbG8="]}), 400)
    with pytest.raises(ollama.ResponseError):
        client.chat(**asked(messages=[message]))
    assert client.chat(**asked(messages=[{**message, "images": []}])).done
