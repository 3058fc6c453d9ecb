"""The Responses API by OpenAI's client, and Ollama's calls."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from edgespec import Sampling, Text

from .served import HELLO, RECITED, Served, reciting, refused, serving

STREAMED: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with serving(context=512) as served:
        yield served


def expected(served: Served, messages: Any = HELLO, most: int = 12) -> str:
    events = served.runtime.chat(messages, Sampling(), max_tokens=most)
    return "".join(event.text for event in events if isinstance(event, Text))


def test_a_response(server: Served) -> None:
    asked = {"model": "toy", "input": "Hello", "temperature": 0, "max_output_tokens": 12}
    raw = server.post("/v1/responses", asked).json()
    Response.model_validate(raw)
    found = server.openai.responses.create(**asked)
    assert found.output_text == expected(server)
    assert found.status == "incomplete"
    assert found.incomplete_details.reason == "max_output_tokens"
    assert (found.usage.output_tokens, found.usage.total_tokens) == (12, 12 + found.usage.input_tokens)


def test_the_events_of_a_stream(server: Served) -> None:
    asked = {"model": "toy", "input": "Hello", "temperature": 0, "max_output_tokens": 12}
    raw = server.post("/v1/responses", {**asked, "stream": True}).text
    for block in raw.strip().split("\n\n"):
        name, data = block.split("\n")
        value = json.loads(data.removeprefix("data: "))
        assert name == f"event: {value['type']}"
        STREAMED.validate_python(value)
    events = list(server.openai.responses.create(**asked, stream=True))
    kinds = [event.type for event in events]
    assert kinds[:4] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
    ]
    assert kinds[-4:] == [
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.incomplete",
    ]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert text == events[-4].text == events[-1].response.output_text == expected(server)


def test_items_and_instructions_are_messages(server: Served) -> None:
    items = [
        {"role": "user", "content": [{"type": "input_text", "text": "a"}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "b", "annotations": []}]},
        {"type": "reasoning", "id": "rs_1", "summary": []},
        {"role": "user", "content": "c"},
    ]
    asked = {"input": items, "instructions": "Be brief", "temperature": 0, "max_output_tokens": 12}
    found = server.openai.responses.create(model="toy", **asked)
    talk = [("system", "Be brief"), ("user", "a"), ("assistant", "b"), ("user", "c")]
    assert found.output_text == expected(server, [{"role": role, "content": text} for role, text in talk])


def test_a_schema_and_an_end(server: Served) -> None:
    pytest.importorskip("llguidance")
    format_ = {"type": "json_schema", "name": "x", "schema": {"enum": ["yes"]}, "strict": True}
    found = server.openai.responses.create(model="toy", input="Hello", text={"format": format_})
    assert (found.output_text, found.status) == ('"yes"', "completed")


def test_what_needs_a_history_is_refused(server: Served) -> None:
    wrong: list[dict[str, Any]] = [{"previous_response_id": "x"}, {"input": [{"type": "image"}]}, {"input": []}]
    for fields in (*wrong, {"input": 3}):
        refused(server.post("/v1/responses", {"input": "Hello", **fields}), 400)


def lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_ollama_chats(server: Served) -> None:
    asked = {"model": "toy", "messages": HELLO, "options": {"temperature": 0, "num_predict": 12}}
    *parts, last = lines(server.post("/api/chat", asked).text)
    assert "".join(part["message"]["content"] for part in parts) == expected(server)
    assert not any(part["done"] for part in parts)
    assert (last["done"], last["done_reason"], last["eval_count"]) == (True, "length", 12)
    whole = server.post("/api/chat", {**asked, "stream": False}).json()
    assert whole["message"] == {"role": "assistant", "content": expected(server)}
    assert whole["eval_duration"] > 0


def test_ollama_generates() -> None:
    with serving(reciting()) as served:
        raw = {"prompt": RECITED, "raw": True, "stream": False, "options": {"temperature": 0, "stop": ["lazy"]}}
        found = served.post("/api/generate", raw).json()
        assert (found["response"], found["done_reason"]) == ("the quick brown fox jumps over the ", "stop")
        chat = {
            "prompt": "Hello",
            "system": "Be kind",
            "stream": False,
            "options": {"temperature": 0, "num_predict": 9},
        }
        talk = [{"role": "system", "content": "Be kind"}, *HELLO]
        assert served.post("/api/generate", chat).json()["response"] == expected(served, talk, 9)


def test_ollama_lists_and_shows(server: Served) -> None:
    assert server.get("/api/version").json()["version"]
    assert [model["name"] for model in server.get("/api/tags").json()["models"]] == ["toy"]
    assert server.post("/api/show", {"model": "toy"}).json()["capabilities"] == ["completion"]
    refused(server.post("/api/embed", {"input": "x"}), 501)
    refused(server.post("/api/chat", {"messages": [{"role": "user"}]}), 400)
    assert server.post("/api/generate", {"model": "toy"}).json()["done_reason"] == "load"
