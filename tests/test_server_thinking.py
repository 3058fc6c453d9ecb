"""A thinking model by the Responses API and by Ollama's calls, and what both say of usage and time."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from edgespec.backends.toy import Bytes
from edgespec.server.fields import Fields
from edgespec.server.responses_request import responses_request
from edgespec.server.settings import Settings

from .served import HELLO, Served, refused, serving
from .test_server_tools import saying

OFF = "<think>\n\n</think>\n\n"  # what ends the prompt of a model that must not think
TEMPLATE = f"{Bytes.template}{{% if enable_thinking is defined and enable_thinking is false %}}{OFF}{{% endif %}}"
STREAMED: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
LONG = "Tell me a long story. " * 10


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with serving(saying("<think>Hm.</think>Yes."), context=1024) as served:
        vocabulary: Any = served.runtime.vocabulary
        vocabulary.template = TEMPLATE
        yield served


def asked(**fields: Any) -> dict[str, Any]:
    return {"input": "Hello", "temperature": 0, "max_output_tokens": 100, **fields}


def test_the_reasoning_of_a_response_is_an_item(server: Served) -> None:
    found = Response.model_validate(server.post("/v1/responses", asked()).json())
    assert [item.type for item in found.output] == ["reasoning", "message"]
    assert found.output[0].content[0].text == "Hm."  # type: ignore[index, union-attr]
    assert (found.output_text, found.status) == ("Yes.", "completed")
    assert found.usage is not None
    assert 3 <= found.usage.output_tokens_details.reasoning_tokens < found.usage.output_tokens


def test_the_reasoning_arrives_in_a_stream(server: Served) -> None:
    blocks = server.post("/v1/responses", asked(stream=True)).text.strip().split("\n\n")
    events = [json.loads(block.split("data: ", 1)[1]) for block in blocks]
    for event in events:
        STREAMED.validate_python(event)
    said = [event["delta"] for event in events if event["type"] == "response.reasoning_text.delta"]
    assert "".join(said) == "Hm."
    added = [event["item"] for event in events if event["type"] == "response.output_item.added"]
    assert [(item["type"], item["content"]) for item in added] == [("reasoning", []), ("message", [])]
    assert [event["output_index"] for event in events if event["type"] == "response.output_item.done"] == [0, 1]
    texts = ("response.reasoning_text.delta", "response.output_text.delta")
    assert [{event["output_index"] for event in events if event["type"] == kind} for kind in texts] == [{0}, {1}]


def test_an_effort_of_none_turns_thinking_off(server: Served) -> None:
    on, off = (
        server.post("/v1/responses", asked(reasoning={"effort": effort})).json()["usage"] for effort in ("low", "none")
    )
    assert off["input_tokens"] - on["input_tokens"] == len(OFF)
    assert off["output_tokens_details"]["reasoning_tokens"] == 0


def test_the_usage_of_a_response_has_the_cached_tokens(server: Served) -> None:
    server.post("/v1/responses", asked(input=LONG))
    found = server.post("/v1/responses", asked(input=LONG)).json()["usage"]
    assert len(LONG) <= found["input_tokens_details"]["cached_tokens"] < found["input_tokens"]


@pytest.mark.parametrize("name", ["previous_response_id", "conversation", "prompt", "background"])
def test_fields_that_need_a_history_are_refused(server: Served, name: str) -> None:
    assert refused(server.post("/v1/responses", asked(**{name: "x"})), 400)["param"] == name


def test_a_developer_is_a_system(server: Served) -> None:
    items = [{"role": "developer", "content": "Be kind"}, {"role": "user", "content": "Hello"}]
    found = responses_request(Fields({"input": items}), Settings(), TEMPLATE)
    (prompt,) = found.wanted.prompts
    assert prompt.messages[0] == {"role": "system", "content": "Be kind"}  # type: ignore[union-attr]


def chat(server: Served, path: str = "/api/chat", **fields: Any) -> Any:
    options = {"temperature": 0, "num_predict": 100}
    return server.post(
        path, {"messages": HELLO, "prompt": "Hello", "stream": False, "options": options, **fields}
    ).json()


def test_ollama_has_the_reasoning_beside_the_answer(server: Served) -> None:
    assert chat(server)["message"] == {"role": "assistant", "content": "Yes.", "thinking": "Hm."}
    generated = chat(server, "/api/generate")
    assert (generated["response"], generated["thinking"]) == ("Yes.", "Hm.")
    off = chat(server, think=False)
    assert off["prompt_eval_count"] - chat(server, think=True)["prompt_eval_count"] == len(OFF)
    assert "thinking" not in off["message"]


def test_ollama_tells_the_time_in_nanoseconds(server: Served) -> None:
    began = time.perf_counter()
    found = chat(server, messages=[{"role": "user", "content": f"{LONG} Now, please."}])
    taken = 1e9 * (time.perf_counter() - began)
    parts = found["prompt_eval_duration"] + found["eval_duration"]
    assert found["eval_duration"] > 1e5, "not even a toy is that fast"
    assert found["prompt_eval_duration"] > 0
    assert parts <= found["total_duration"] <= taken


def test_ollama_without_messages_loads_the_model_and_has_no_suffix(server: Served) -> None:
    found = chat(server, messages=[])
    assert (found["done"], found["done_reason"], found["message"]["content"]) == (True, "load", "")
    answer = server.post("/api/generate", {"prompt": "def f", "suffix": "return"})
    assert refused(answer, 400)["param"] == "suffix"
