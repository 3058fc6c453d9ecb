"""Chat completions and completions, by OpenAI's own client."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from openai.types import Completion
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from edgespec import Runtime, Sampling, Text

from .served import HELLO, RECITED, Served, body, reciting, refused, said, serving

PLAIN = {"model": "toy", "messages": HELLO, "max_tokens": 12, "temperature": 0}


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with serving(slots=2) as served:
        yield served


@pytest.fixture(scope="module")
def reciter() -> Iterator[Served]:
    with serving(reciting(), context=1024) as served:
        yield served


def answer(runtime: Runtime, sampling: Sampling, **options: object) -> str:
    events = runtime.chat(HELLO, sampling, wait=True, **{"max_tokens": 12, **options})  # type: ignore[arg-type]
    return "".join(event.text for event in events if isinstance(event, Text))


def events(response: httpx.Response) -> list[dict[str, Any]]:
    """The data of server-sent events, but the last one, which says that they are done."""
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == "text/event-stream"
    *lines, done, end = response.text.split("\n\n")
    assert (done, end) == ("data: [DONE]", "")
    return [json.loads(line.removeprefix("data: ")) for line in lines if line != ": "]


def test_an_answer_is_that_of_the_library(server: Served) -> None:
    for sampling in (Sampling(), Sampling(temperature=0.9, top_p=0.9, seed=11)):
        found = server.openai.chat.completions.create(
            model="toy",
            messages=HELLO,
            max_completion_tokens=12,
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            seed=sampling.seed,
        )
        assert found.choices[0].message.content == answer(server.runtime, sampling) != ""
        assert (found.choices[0].finish_reason, found.model, found.object) == ("length", "toy", "chat.completion")


def test_answers_and_chunks_are_valid(server: Served) -> None:
    whole = server.post("/v1/chat/completions", body())
    ChatCompletion.model_validate(whole.json(), strict=True)
    for fields in ({}, {"stream_options": {"include_usage": True}}, {"n": 2}, {"edgespec": {"spans": True}}):
        chunks = events(server.post("/v1/chat/completions", body(stream=True, **fields)))
        assert len(chunks) > 3
        for chunk in chunks:
            ChatCompletionChunk.model_validate(chunk, strict=True)
    Completion.model_validate(server.post("/v1/completions", {"prompt": "a", "max_tokens": 3}).json(), strict=True)
    *chunks, last = events(server.post("/v1/completions", {"prompt": "a", "max_tokens": 3, "stream": True}))
    Completion.model_validate(last, strict=True)
    for chunk in chunks:  # null until the end, as OpenAI's server sends it; the model of the client has no null here
        assert chunk["choices"][0].pop("finish_reason") is None
        Completion.model_validate({**chunk, "choices": [{**chunk["choices"][0], "finish_reason": "stop"}]}, strict=True)


def test_a_stream_has_the_same_text_and_ends_with_the_usage(server: Served) -> None:
    whole = server.openai.chat.completions.create(**PLAIN)
    chunks = list(server.openai.chat.completions.create(**PLAIN, stream=True, stream_options={"include_usage": True}))
    assert said(chunks) == whole.choices[0].message.content
    assert (chunks[0].choices[0].delta.role, chunks[0].choices[0].delta.content) == ("assistant", "")
    assert [chunk.choices[0].finish_reason for chunk in chunks[:-1]] == [None] * (len(chunks) - 2) + ["length"]
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert whole.usage is not None
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens == 12
    assert chunks[-1].usage.prompt_tokens == whole.usage.prompt_tokens == len(server.runtime.prompt(HELLO))
    assert all(chunk.usage is None for chunk in chunks[:-1])


def test_usage_counts_what_the_cache_held(server: Served) -> None:
    fresh = [{"role": "user", "content": "Something that nobody asked before"}]
    first, second = (
        server.openai.chat.completions.create(model="toy", messages=fresh, max_tokens=4).usage for _ in range(2)
    )
    assert first is not None
    assert second is not None
    assert first.prompt_tokens_details is not None
    assert second.prompt_tokens_details is not None
    assert (first.prompt_tokens_details.cached_tokens or 0) < 20
    assert second.prompt_tokens_details.cached_tokens == second.prompt_tokens - 1


def test_several_answers_have_the_next_seeds(server: Served) -> None:
    asked = {**PLAIN, "temperature": 1.0, "seed": 5, "n": 3}
    found = server.openai.chat.completions.create(**asked)
    texts = [choice.message.content for choice in found.choices]
    assert [choice.index for choice in found.choices] == [0, 1, 2]
    assert texts == [answer(server.runtime, Sampling(temperature=1.0, seed=5 + i)) for i in range(3)]
    assert len({*texts}) == 3
    assert found.usage is not None
    assert found.usage.completion_tokens <= 36
    assert found.usage.prompt_tokens == len(server.runtime.prompt(HELLO)), "the prompt counts once"
    chunks = list(server.openai.chat.completions.create(**asked, stream=True))
    streamed = [said([chunk for chunk in chunks if chunk.choices[0].index == i]) for i in range(3)]
    assert streamed == texts


def test_one_seed_is_one_text_and_no_seed_is_another_each_time(server: Served) -> None:
    def text(**fields: object) -> str:
        return str(server.post("/v1/chat/completions", body(temperature=1, **fields)).json()["choices"][0]["message"])

    assert text(seed=3) == text(seed=3) == text(seed=3, edgespec={"k": 0}) == text(seed=3, edgespec={"k": 4})
    assert text(seed=3) != text(seed=4)
    assert text(seed=-3) == text(seed=-3)
    assert len({text() for _ in range(4)}) > 1


def test_a_stop_text_ends_the_answer(reciter: Served) -> None:
    for stop in ("lazy", ["never", "lazy"]):
        found = reciter.openai.chat.completions.create(**{**PLAIN, "max_tokens": 100}, stop=stop).choices[0]
        assert found.finish_reason == "stop"
        assert "lazy" not in str(found.message.content)
        assert str(found.message.content).endswith("over the ")


def test_biases_and_penalties_arrive(reciter: Served) -> None:
    letter = RECITED[len(reciter.runtime.prompt(HELLO)) % len(RECITED)]
    first = body(temperature=0, max_tokens=1, logit_bias={str(ord(letter)): -100, str(ord("%")): 50})
    plain = reciter.post("/v1/chat/completions", body(temperature=0, max_tokens=1)).json()
    assert plain["choices"][0]["message"]["content"] == letter
    assert reciter.post("/v1/chat/completions", first).json()["choices"][0]["message"]["content"] == "%"
    again = reciter.post("/v1/chat/completions", body(temperature=0, repeat_penalty=1000)).json()
    assert again["choices"][0]["message"]["content"] != RECITED[:12]


def test_spans_say_who_drafted_and_what_was_rejected(reciter: Served) -> None:
    asked = body(temperature=0, max_tokens=120, stream=True, edgespec={"spans": True, "k": 3})
    chunks = events(reciter.post("/v1/chat/completions", asked))
    rounds = [chunk["edgespec"] for chunk in chunks if "k" in chunk.get("edgespec", {})]
    text = "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks)
    assert "".join(text for each in rounds for text, _ in each["spans"]) == text
    drafters = {drafter for each in rounds for _, drafter in each["spans"]}
    assert None in drafters
    assert drafters & {"lookup", "lookup+recycling", "recycling"}
    assert sum(each["tokens"] for each in rounds) == 120
    assert all(each["ms"] > 0 for each in rounds)
    rejected = [text for each in rounds for text in each["rejected"]]
    accepted = sum(drafter is not None for each in rounds for _, drafter in each["spans"])
    assert sum(each["k"] for each in rounds) == len(rejected) + accepted
    assert "edgespec" not in json.dumps(events(reciter.post("/v1/chat/completions", body(stream=True))))


def test_an_answer_without_a_stream_has_the_rounds_too(reciter: Served) -> None:
    found = reciter.post("/v1/chat/completions", body(temperature=0, max_tokens=90, edgespec={"spans": True, "k": 3}))
    extra = found.json()["edgespec"][0]
    assert extra["stats"]["tokens"] == 90
    assert extra["stats"]["accepted"] == found.json()["timings"]["draft_n_accepted"] > 0
    assert found.json()["timings"]["predicted_n"] == 90


def test_completions(server: Served) -> None:
    one = server.openai.completions.create(model="toy", prompt="abc", max_tokens=5, temperature=0)
    text = "".join(e.text for e in server.runtime.complete("abc", max_tokens=5) if isinstance(e, Text))
    assert one.choices[0].text == text
    several = server.openai.completions.create(model="toy", prompt=["abc", "xyz"], max_tokens=5, temperature=0, n=2)
    assert [choice.index for choice in several.choices] == [0, 1, 2, 3]
    assert several.choices[0].text == several.choices[1].text == text != several.choices[2].text
    assert several.usage is not None
    assert several.usage.prompt_tokens == 6
    tokens = server.openai.completions.create(model="toy", prompt=[97, 98, 99], max_tokens=5, temperature=0)
    assert tokens.choices[0].text == text
    echo = server.openai.completions.create(model="toy", prompt="abc", max_tokens=5, temperature=0, echo=True)
    assert echo.choices[0].text == "abc" + text
    chunks = list(server.openai.completions.create(model="toy", prompt="abc", max_tokens=5, temperature=0, stream=True))
    assert "".join(chunk.choices[0].text for chunk in chunks) == text


def test_a_prompt_that_is_too_long_says_so(server: Served) -> None:
    long = [{"role": "user", "content": "x" * 400}]
    for fields in ({}, {"stream": True}):
        error = refused(server.post("/v1/chat/completions", body(messages=long, **fields)), 400)
        assert error["code"] == "context_length_exceeded"
    assert refused(server.post("/v1/completions", {"prompt": "x" * 400}), 400)["code"] == "context_length_exceeded"


def test_generate_is_that_of_the_blog(server: Served) -> None:
    text = "".join(e.text for e in server.runtime.complete("abc", max_tokens=5) if isinstance(e, Text))
    for fields in ({}, {"k": 0}, {"k": 3}, {"k": "auto"}):
        found = server.post("/generate", {"prompt": "abc", "max_tokens": 5, "temperature": 0, **fields})
        assert found.json()["output"] == text
    streamed = server.post("/generate", {"prompt": "abc", "max_tokens": 5, "temperature": 0, "stream": True})
    values = [json.loads(line.removeprefix("data: ")) for line in streamed.text.split("\n\n") if line]
    assert "".join(value.get("text", "") for value in values) == values[-1]["output"] == text


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": "hello"}, "messages"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content[0]"),
        ({"messages": [{"content": "x"}]}, "messages[0].role"),
        ({"temperature": "hot"}, "temperature"),
        ({"top_p": 2}, "top_p"),
        ({"n": 9}, "n"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"stop": [1]}, "stop"),
        ({"stop": ["x"] * 17}, "stop"),
        ({"stop": "x" * 257}, "stop"),
        ({"logit_bias": {"a": 1}}, "logit_bias"),
        ({"logit_bias": {"9999": 1}}, None),
        ({"stream": "yes"}, "stream"),
        ({"seed": "x"}, "seed"),
        ({"edgespec": {"verifier": "hope"}}, "edgespec"),
        ({"edgespec": {"k": 1000}}, "edgespec.k"),
        ({"edgespec": {"drafters": ["nobody"]}}, None),
        ({"edgespec": 1}, "edgespec"),
        ({"stream_options": 3}, "stream_options"),
    ],
)
def test_a_wrong_field_is_named(server: Served, fields: dict[str, object], param: str | None) -> None:
    assert refused(server.post("/v1/chat/completions", body(**fields)), 400)["param"] == param


def test_unknown_fields_and_nulls_are_ignored(server: Served) -> None:
    nulls = dict.fromkeys(("stop", "seed", "n", "stream", "tools", "response_format", "logit_bias", "stream_options"))
    more = {"user": "me", "store": True, "metadata": {"a": "b"}, "service_tier": "auto", "nobody knows": [1]}
    found = server.post("/v1/chat/completions", body(temperature=0, **nulls, **more))
    assert found.json()["choices"][0]["message"]["content"] == answer(server.runtime, Sampling())


def test_content_may_be_parts_and_a_developer_is_the_system(server: Served) -> None:
    def tokens(*messages: dict[str, object]) -> object:
        return server.post("/tokenize", {"messages": messages}).json()["tokens"]

    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert tokens({"role": "user", "content": parts}) == tokens({"role": "user", "content": "a\nb"})
    assert tokens({"role": "developer", "content": "x"}) == tokens({"role": "system", "content": "x"})
