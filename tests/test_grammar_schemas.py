"""Answers by 200 schemas are valid, and those of speculation are those of constrained plain decoding."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import jsonschema
import pytest

from edgespec import Device, Finished, Grammar, Runtime, Sampling, Speculation, Text, load

from .schemas import schema

PLAIN = Speculation(k=0)
PARTS = 10


@pytest.fixture(scope="module")
def runtime(small_pair: dict[str, Path]) -> Iterator[Runtime]:
    with load(small_pair["target"], device=Device(context=1024)) as runtime:
        yield runtime


def said(runtime: Runtime, grammar: Grammar, sampling: Sampling, speculation: Speculation) -> tuple[str, str]:
    messages = [{"role": "user", "content": "Book a table, as JSON."}]
    answer = runtime.chat(messages, sampling, max_tokens=120, grammar=grammar, speculation=speculation)
    texts, reason = [], ""
    for event in answer:
        if isinstance(event, Text):
            texts.append(event.text)
        if isinstance(event, Finished):
            assert not event.notices
            reason = event.reason
    return "".join(texts), reason


@pytest.mark.parametrize("part", range(PARTS))
def test_answers_are_valid(runtime: Runtime, part: int) -> None:
    whole = 0
    for seed in range(part, 200, PARTS):
        wanted = schema(seed)
        grammar = Grammar.json_schema(wanted)
        sampling = Sampling(temperature=0.8 * (seed % 3 > 0), seed=seed)
        rule = ("match", "rejection", "block")[seed % 3]
        text, reason = said(runtime, grammar, sampling, Speculation(k=6, verifier=rule))
        if reason == "end":
            jsonschema.validate(json.loads(text), wanted)
            whole += 1
        else:
            assert reason == "length"
        if rule == "match" and seed % 2:
            assert said(runtime, grammar, sampling, PLAIN) == (text, reason), seed
    assert whole >= 10


def test_any_object(runtime: Runtime) -> None:
    for seed in range(5):
        text, reason = said(runtime, Grammar.json_object(), Sampling(temperature=1.0, seed=seed), Speculation())
        assert text.startswith("{")
        assert reason != "end" or isinstance(json.loads(text), dict)
