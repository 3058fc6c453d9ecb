"""Fields that change what is computed: formats, grammars, predictions, log probabilities, thinking."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from openai.types.chat import ChatCompletion
from pydantic import BaseModel, ConfigDict, Field

from edgespec import Sampling, Text

from .served import HELLO, RECITED, Served, body, reciting, refused, said, serving

SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 5}, "age": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with serving() as served:
        yield served


@pytest.fixture(scope="module")
def reciter() -> Iterator[Served]:
    with serving(reciting(), context=1024) as served:
        yield served


def content(served: Served, **fields: Any) -> str:
    found = served.post("/v1/chat/completions", body(**{"max_tokens": 150, "temperature": 0.5, "seed": 1, **fields}))
    assert found.status_code == 200, found.text
    ChatCompletion.model_validate(found.json(), strict=True)
    return str(found.json()["choices"][0]["message"]["content"])


def test_a_schema_is_kept_to(server: Served) -> None:
    pytest.importorskip("llguidance")
    asked = {"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA, "strict": True}}
    for seed in range(3):
        person = json.loads(content(server, response_format=asked, seed=seed))
        assert list(person) == ["name", "age"]
        assert 0 <= person["age"] <= 99
    streamed = server.openai.chat.completions.create(
        model="toy",
        messages=HELLO,
        max_tokens=150,
        temperature=0.5,
        seed=1,
        stream=True,
        response_format=asked,
    )
    assert said(list(streamed)) == content(server, response_format=asked)


class Person(BaseModel):
    """What `parse` of OpenAI's client makes a schema of."""

    model_config = ConfigDict(extra="forbid")
    name: str = Field(max_length=5)
    age: int = Field(ge=0, le=99)


def test_the_client_parses_what_it_asked_for(server: Served) -> None:
    pytest.importorskip("llguidance")
    found = server.openai.chat.completions.parse(
        model="toy", messages=HELLO, max_tokens=150, temperature=0.5, seed=1, response_format=Person
    )
    person = found.choices[0].message.parsed
    assert isinstance(person, Person)
    assert json.loads(found.choices[0].message.content) == person.model_dump()


def test_grammars_of_both_syntaxes_are_kept_to(server: Served) -> None:
    pytest.importorskip("llguidance")
    assert content(server, grammar='start: "yes" | "no"') in ("yes", "no")
    assert content(server, grammar='root ::= "yes" | "no"') in ("yes", "no")
    format_ = {"type": "json_object", "schema": {"enum": [7]}}
    assert content(server, response_format=format_) == "7"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema.schema"),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "nope"}}}}, "response_format"),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": 3}}}, "response_format"),
        ({"grammar": "start: missing"}, "grammar"),
        ({"grammar": "x", "response_format": {"type": "json_object"}}, "grammar"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"prediction": {"type": "content", "content": 3}}, "prediction.content"),
        ({"chat_template_kwargs": []}, "chat_template_kwargs"),
    ],
)
def test_a_wrong_format_is_named(server: Served, fields: dict[str, object], param: str) -> None:
    pytest.importorskip("llguidance")
    assert refused(server.post("/v1/chat/completions", body(**fields)), 400)["param"] == param


def test_a_prediction_is_drafted_and_counted(reciter: Served) -> None:
    """The server's answer repeats a text; the predicted one has an error in its middle."""
    plain = reciter.openai.chat.completions.create(
        model="toy", messages=HELLO, max_tokens=100, temperature=0, extra_body={"edgespec": {"k": 0}}
    )
    text = str(plain.choices[0].message.content)
    assert RECITED in text
    predicted = text[:40] + "WRONG" + text[45:]
    found = reciter.openai.chat.completions.create(
        model="toy",
        messages=HELLO,
        max_tokens=100,
        temperature=0,
        prediction={"type": "content", "content": [{"type": "text", "text": predicted}]},
        extra_body={"edgespec": {"k": 6}},
    )
    assert found.choices[0].message.content == text
    assert found.usage is not None
    details = found.usage.completion_tokens_details
    assert details is not None
    assert (details.accepted_prediction_tokens or 0) > 40
    assert (details.rejected_prediction_tokens or 0) > 0


def test_log_probabilities_are_those_of_the_library(server: Served) -> None:
    found = server.openai.chat.completions.create(
        model="toy", messages=HELLO, max_tokens=12, temperature=0, logprobs=True, top_logprobs=3
    )
    chosen = found.choices[0].logprobs
    assert chosen is not None
    assert chosen.content is not None
    events = server.runtime.chat(HELLO, Sampling(), max_tokens=12, logprobs=3)
    expected = [each for event in events if isinstance(event, Text) for each in event.logprobs]
    assert len(expected) == 12
    assert [token.logprob for token in chosen.content] == [each.logprob for each in expected]
    assert [bytes(token.bytes or ()) for token in chosen.content] == [each.piece for each in expected]
    for token in chosen.content:
        assert len(token.top_logprobs) == 3
        assert token.logprob == max(other.logprob for other in token.top_logprobs), "it is greedy"
        assert np.exp([other.logprob for other in token.top_logprobs]).sum() < 1
    chunks = server.openai.chat.completions.create(
        model="toy", messages=HELLO, max_tokens=12, temperature=0, logprobs=True, stream=True
    )
    streamed = [chunk.choices[0].logprobs for chunk in chunks]
    assert [token.logprob for each in streamed if each for token in each.content or ()] == [
        each.logprob for each in expected
    ]


def test_log_probabilities_of_completions(server: Served) -> None:
    found = server.openai.completions.create(model="toy", prompt="abc", max_tokens=5, temperature=0, logprobs=2)
    chosen = found.choices[0].logprobs
    assert chosen is not None
    assert len(chosen.tokens or ()) == len(chosen.token_logprobs or ()) == len(chosen.text_offset or ()) == 5
    assert (chosen.text_offset or [])[0] == 0


def test_a_grammar_that_the_vocabulary_cannot_write_is_400(server: Served) -> None:
    pytest.importorskip("llguidance")
    response = server.post("/v1/chat/completions", body(grammar="start: <|nope|>"))
    assert "unknown special token" in refused(response, 400)["message"]
